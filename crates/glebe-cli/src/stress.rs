//! `glebe stress`: tenants, first class and forks at once, every byte looked at.

use std::io::Write;
use std::time::Duration;

use glebe_bench::interrupt;
use glebe_bench::reserve::stress::{self, Options};

use crate::Outcome;

/// Options of `glebe stress`.
#[derive(clap::Args)]
pub struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Count writers even where restartable sequences are to be had
    #[arg(long)]
    counted: bool,
}

/// Runs the stress; an error if a byte was wrong.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    interrupt::install()?;
    let time = Duration::from_secs(args.seconds);
    let outcome = stress::run(Options { time, counted: args.counted })?;
    write!(out, "{outcome}")?;
    match outcome.passed() {
        true => Ok(()),
        false => Err("the stress failed: see the counts".into()),
    }
}
