//! [`run`]: the benchmark `reserve`: pages in and out, threads, blocks under load, what the load
//! pays for them, growth.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use glebe::reserve::Reserve;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::background::Background;
use super::load::Load;
use super::tenant::Tenant;
use super::{affordable, evacuation, growth, map, page_ops, recall, system, Error};
use crate::report::Report;

/// The name on the command line and in the JSON.
pub const NAME: &str = "reserve";

/// Of the reserves for pages in and out, and for requests; in a quick run far larger than the
/// processor's caches yet, and soon had.
const SIZES: [Bytes; 2] = [Bytes::gib(1), Bytes::gib(1)];
const SIZES_QUICK: [Bytes; 2] = [Bytes::mib(256), Bytes::mib(512)];

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few samples.
    pub quick: bool,
    /// A shell command that ends, as background instead of a build.
    pub background: Option<String>,
    /// Where scratch files go, those of the background too; the temporary directory without.
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
    let sizes = if options.quick { SIZES_QUICK } else { SIZES };
    // A quarter of what is available at most: the pages to compare with take as much.
    let [ops, requested] = [affordable(sizes[0], 4)?, affordable(sizes[1], 4)?];
    page_ops::measure(&map(ops, Reserve::options())?, options.quick, &mut report)?;
    requests(&map(requested, Reserve::options())?, options, &mut report)?;
    growth::measure(options.quick, &mut report)?;
    report.note(
        "Kernel memory comes zeroed and is counted so; the reserve's does in the rows `zeroed`. \
         The kernel promises no contiguity beyond a huge page, and may move what is no hugetlb \
         page: for one page, `plain` is contiguous by itself but does not stay where it is.",
    );
    Ok(report)
}

/// Requests without and with a load, and the load beside requests.
fn requests(reserve: &Reserve, options: &Options, report: &mut Report) -> Result<(), Error> {
    let quick = options.quick;
    let (command, dir) = (options.background.as_deref(), options.dir.as_deref());
    let background = Background::new(command, dir, quick).map(Arc::new);
    let contig = reserve.contig();
    report.note(&format!(
        "reserve: {} of {}, longest run {}; writers {}",
        reserve.len().bytes(page_size()),
        contig.source(),
        contig.longest_run(),
        super::writers(reserve),
    ));
    if let Err(why) = reserve.serve_stats() {
        report.note(&format!("`glebe stats` does not show it: {why}"));
    }
    let mut tenant = Tenant::new(reserve.page_cache().namespace(NAME)?);
    recall::measure_alone(reserve, &mut tenant, quick, report);
    let load = Load::start(background.as_ref().ok())?;
    report.note(&format!("load while requests are timed: {}", load.what));
    recall::measure(reserve, &mut tenant, quick, report);
    drop(load);
    system::measure(&background, reserve, &mut tenant, quick, report)?;
    let dir = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
    evacuation::measure(reserve, &mut tenant, &dir, quick, report)?;
    tenant.report(report);
    Ok(())
}
