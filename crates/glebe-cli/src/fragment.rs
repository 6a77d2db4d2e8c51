//! `glebe fragment`, which no help lists: what a benchmark has a child of its own do to the
//! machine's memory.

use std::io::Write;

use glebe_bench::contig::fragment;

use crate::Outcome;

/// What the parent tells its child.
#[derive(clap::Args)]
pub struct Args {
    /// Process that started this one
    parent: u32,
    /// Bytes to take at most
    most: u64,
    /// Write to them at random instead of giving every other page back
    #[arg(long)]
    busy: bool,
}

/// Takes, and gives back or writes.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    Ok(fragment::inside(args.parent, args.most, args.busy, out)?)
}
