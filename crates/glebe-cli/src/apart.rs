//! `glebe apart`, which no help lists: what a benchmark has a child of its own do, in a process in
//! which nothing else happens.

use std::io::Write;

use glebe_bench::zpool;

use crate::Outcome;

/// What the parent tells its child.
#[derive(clap::Args)]
pub struct Args {
    /// Process that started this one
    parent: u32,
    /// What to do, as JSON
    job: String,
}

/// Does the job.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    Ok(zpool::apart::inside(args.parent, &args.job, out)?)
}
