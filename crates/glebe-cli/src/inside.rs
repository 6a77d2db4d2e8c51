//! `glebe inside`, which no help lists: what a benchmark or a stress has a child of its own do in a
//! memory cgroup.

use std::io::Write;
use std::path::PathBuf;

use glebe_bench::volatile;

use crate::Outcome;

/// What the parent tells its child.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the group
    group: PathBuf,
    /// Process that started this one
    parent: u32,
    /// What to do, as JSON
    job: String,
}

/// Does the job.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    Ok(volatile::inside(&args.group, args.parent, &args.job, out)?)
}
