//! The benchmark `contig`: gain and cost of physically contiguous memory, beside memalign and the
//! kernel's huge pages.
//!
//! Devices such as network cards need contiguous memory. Here reads by a processor and direct I/O
//! with a disk show the gain, so no such device is needed.
//!
//! Units: nanoseconds per read, MB/s and GB/s, microseconds of wall time (`us`), microseconds of
//! CPU time (`us cpu`), milliseconds to give memory back, MiB.

mod direct;
pub(crate) mod fragment;
mod on_demand;
mod populate;
mod reserved;
mod working_set;

use glebe::units::Bytes;

use crate::memory::Way;
use crate::report::{Report, GLEBE};
use crate::Outcome;

const HUGETLB: &str = "hugetlb";

/// Ratios compare the last way with each of the other ways.
pub(crate) const WAYS: [(&str, Way); 4] = [
    ("memalign", Way::Memalign),
    ("memalign_thp", Way::MemalignThp),
    (HUGETLB, Way::Hugetlb),
    (GLEBE, Way::Glebe),
];

const NOTES: [&str; 3] = [
    "`hugetlb` is the pool's pages in the order in which the kernel hands them out; `glebe` \
     chooses its source by itself. No two contestants have memory at once but for direct I/O.",
    "`populate` of glebe takes the pool's pages as they come; `obtain` of glebe moves them into \
     physical order. The pool has them set aside before.",
    "In a virtual machine frames and runs are the guest's, and pages that the host has not given \
     yet make whoever touches them first look slow.",
];

pub(crate) fn run(report: &mut Report) -> Outcome {
    working_set::measure(report)?;
    direct::measure(report)?;
    populate::measure(report)?;
    let reserve = reserved::measure(report)?;
    on_demand::measure(reserve, report)?;
    let dpdk = "not measured: librte_eal is not linked here (Debian: libdpdk-dev)";
    report.remark("random_read", "dpdk_memzone", "ns", dpdk);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

/// Formats a size for the name of a case: `4k`, `64m`, `4g`.
pub(crate) fn name(size: Bytes) -> String {
    match size.get() {
        bytes if bytes >> 30 << 30 == bytes => format!("{}g", bytes >> 30),
        bytes if bytes >> 20 > 0 => format!("{}m", bytes >> 20),
        bytes => format!("{}k", bytes >> 10),
    }
}

fn mib(bytes: Bytes) -> f64 {
    bytes.get() as f64 / (1 << 20) as f64
}
