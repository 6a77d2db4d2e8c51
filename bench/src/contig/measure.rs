//! [`run`]: the benchmark `contig`.

use std::path::{Path, PathBuf};

use glebe::units::Bytes;

use super::{direct, populate, required, working_set, Error};
use crate::report::Report;

/// The name on the command line and in the JSON.
pub const NAME: &str = "contig";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Few samples of small memory.
    pub quick: bool,
    /// No memory is larger than this.
    pub largest: Option<Bytes>,
    /// Where the file of direct I/O is made; the temporary directory without.
    pub dir: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
}

/// Runs the benchmark.
///
/// # Errors
/// If the machine's memory cannot be read, or the library is refused what it needs at least.
pub fn run(options: &Options) -> Result<Report, Error> {
    let mut report = Report::new(NAME, &options.command, options.quick);
    let quick = options.quick;
    let largest = options.largest.unwrap_or(Bytes::new(u64::MAX));
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    working_set::measure(quick, largest, &mut report)?;
    direct::measure(quick, largest, &dir, &mut report)?;
    populate::measure(quick, largest, &mut report)?;
    required::measure(quick, largest, &mut report)?;
    dpdk(&mut report);
    for note in NOTES {
        report.note(note);
    }
    Ok(report)
}

const NOTES: [&str; 3] = [
    "`hugetlb` is the pool's pages in the order in which the kernel hands them out; `glebe` \
     chooses its source by itself. No two contestants have memory at once but for direct I/O.",
    "`populate` of glebe takes the pool's pages as they come; `_in_order` moves them into physical \
     order, as `obtain` of glebe does; `_search` has a quarter more pages, and keeps the best. The \
     pool has them set aside for it; in `grow_populate` they are first added to the pool.",
    "In a virtual machine frames and runs are the guest's, and pages that the host has not given \
     yet make whoever touches them first look slow.",
];

/// Where a memzone's library is installed.
const LIBRARIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64"];

/// The row of DPDK's contiguous memory, which this program does not drive.
fn dpdk(report: &mut Report) {
    let found = LIBRARIES.iter().map(|dir| Path::new(dir).join("librte_eal.so"));
    let text = match found.into_iter().find(|path| path.exists()) {
        Some(path) => format!("not measured: {} is there, and not linked here", path.display()),
        None => "not installed: librte_eal (Debian: libdpdk-dev)".to_string(),
    };
    report.absent("random_read", "dpdk_memzone", "ns", &text);
}
