//! The benchmark `contig`: what physically contiguous memory buys and what it costs, beside
//! memalign and beside huge pages as the kernel hands them out.
//!
//! Without a network card that reads memory by itself the gain is measured by what a processor and
//! a disk do; every row says what it is. Units: nanoseconds a read, megabytes a second,
//! microseconds of CPU time.

mod direct;
pub(crate) mod fragment;
pub(crate) mod memory;
mod on_demand;
mod populate;
mod standing;
mod working_set;

use std::path::Path;

use glebe::error::OsError;
use glebe::units::Bytes;

use crate::peers::PeerError;
use crate::report::Report;

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine must not be brought to kill a process for it.
    #[error("{len} asked for; {available} are available, of which {most} may be used")]
    TooLarge {
        /// Bytes asked for.
        len: Bytes,
        /// Bytes that may be had.
        most: Bytes,
        /// `MemAvailable` at that time.
        available: Bytes,
    },
    /// The library refused.
    #[error(transparent)]
    Contig(#[from] glebe::contig::Error),
    /// The kernel gave no huge pages.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A call failed that should not.
    #[error(transparent)]
    Os(#[from] OsError),
}

const NOTES: [&str; 3] = [
    "`hugetlb` is the pool's pages in the order in which the kernel hands them out; `glebe` \
     chooses its source by itself. No two contestants have memory at once but for direct I/O.",
    "`populate` of glebe takes the pool's pages as they come; `obtain` of glebe moves them into \
     physical order. The pool has them set aside before.",
    "In a virtual machine frames and runs are the guest's, and pages that the host has not given \
     yet make whoever touches them first look slow.",
];

/// Runs the benchmark on memory of at most `largest`; the file of direct I/O is made in `dir`, or
/// in the temporary directory.
///
/// # Errors
/// If the machine's memory cannot be read, or the library is refused what it needs at least.
pub(crate) fn run(
    quick: bool,
    largest: Option<Bytes>,
    dir: Option<&Path>,
    command: &str,
) -> Result<Report, Error> {
    let mut report = Report::new("contig", command, quick);
    let largest = largest.unwrap_or(Bytes::new(u64::MAX));
    let dir = dir.map_or(std::env::temp_dir(), Path::to_path_buf);
    working_set::measure(quick, largest, &mut report)?;
    direct::measure(quick, largest, &dir, &mut report)?;
    populate::measure(quick, largest, &mut report)?;
    let pool = standing::measure(quick, largest, &mut report)?;
    on_demand::measure(quick, pool, &mut report)?;
    dpdk(&mut report);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(report)
}

/// Where a memzone's library is installed.
const LIBRARIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64"];

/// The row of DPDK's contiguous memory, which this program does not drive.
fn dpdk(report: &mut Report) {
    let mut found = LIBRARIES.iter().map(|dir| Path::new(dir).join("librte_eal.so"));
    let text = match found.find(|path| path.exists()) {
        Some(path) => format!("not measured: {} is there, and not linked here", path.display()),
        None => "not installed: librte_eal (Debian: libdpdk-dev)".to_string(),
    };
    report.absent("random_read", "dpdk_memzone", "ns", &text);
}

/// A size in the name of a case: `64m`, `4g`.
pub(crate) fn name(size: Bytes) -> String {
    match size.get() >> 20 {
        0 => size.get().to_string(),
        mib if mib % 1024 == 0 => format!("{}g", mib / 1024),
        mib => format!("{mib}m"),
    }
}
