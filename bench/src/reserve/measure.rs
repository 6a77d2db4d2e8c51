//! [`run`]: the benchmark `reserve`: recalls, pages in and out, threads, growth.

use std::path::PathBuf;

use glebe::reserve::Reserve;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::load::Load;
use super::tenant::Tenant;
use super::{affordable, growth, map, page_ops, recall, stress, Error};
use crate::report::Report;

/// The name on the command line and in the JSON.
pub const NAME: &str = "reserve";

const RESERVE: Bytes = Bytes::gib(1);

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few samples.
    pub quick: bool,
    /// A shell command as load instead of threads.
    pub background: Option<String>,
    /// Where scratch files go, those of a command as load too; the temporary directory without.
    pub dir: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
}

/// Runs the benchmark.
///
/// # Errors
/// If there is no reserve, no load or no second mapping; what goes wrong in a request is a check.
pub fn run(options: &Options) -> Result<Report, Error> {
    let mut report = Report::new(NAME, &options.command, options.quick);
    for check in ["failures", "wrong_bytes", "stray_writes", "over_recall", "not_contiguous"] {
        report.check(check, 0);
    }
    // A quarter: the pages to compare with take as much, and the kernel's blocks come beside.
    let reserve = map(affordable(RESERVE, 4)?, Reserve::builder())?;
    let contig = reserve.contig();
    report.note(&format!(
        "reserve: {} of {}, longest run {}; writers {}",
        reserve.len().bytes(page_size()),
        contig.source(),
        contig.longest_run(),
        stress::writers(&reserve),
    ));
    let pool = reserve.page_cache().pool(NAME)?;
    let mut tenant = Tenant::new(pool.clone());
    tenant.fill(&reserve);
    page_ops::threads(&pool, &tenant, options.quick, &mut report);
    page_ops::measure(&reserve, &pool, &mut tenant, options.quick, &mut report)?;
    tenant.fill(&reserve);
    let load = Load::start(options.background.as_deref(), options.dir.as_deref())?;
    report.note(&format!("load during recall and zeroed: {}", load.what));
    recall::measure(&reserve, &mut tenant, options.quick, &mut report);
    drop(load);
    report.check("wrong_bytes", tenant.wrong_pages * page_size().bytes().get());
    report.check("failures", tenant.failures);
    drop((tenant, pool, reserve));
    growth::measure(options.quick, &mut report)?;
    report.note(
        "Kernel memory comes zeroed and is counted so; the reserve's does in the rows `zeroed`. \
         The kernel promises no contiguity beyond a huge page.",
    );
    Ok(report)
}
