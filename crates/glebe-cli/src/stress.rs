//! `glebe stress`: many threads at once, every byte looked at.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use glebe_bench::interrupt;
use glebe_bench::{reserve, volatile};

use crate::{usage, Outcome};

/// Options of `glebe stress`.
#[derive(clap::Args)]
pub struct Args {
    /// What to stress
    #[arg(value_enum, default_value_t = What::Reserve)]
    what: What,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Send each thread N signals a second; half of the time the kernel restarts interrupted calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    signal_hz: Option<u32>,
    /// Reserve: count writers even where restartable sequences are to be had
    #[arg(long)]
    counted: bool,
    /// Volatile: one engine only, instead of half of the time with each
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Volatile: where the file lies that is read to make memory short; no tmpfs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum What {
    /// Tenants, first class and forks on one reserve
    Reserve,
    /// Marks, writes, reads and forks in a memory cgroup under pressure
    Volatile,
    /// Pools of compressed objects, of their own and lent by a reserve, with forks
    Objects,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Engine {
    Scan,
    Tag,
}

/// Runs the stress; an error if a byte was wrong.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    let (time, signal_hz) = (Duration::from_secs(args.seconds), args.signal_hz);
    if args.what != What::Volatile && (args.engine.is_some() || args.dir.is_some()) {
        return usage("--engine and --dir are for volatile memory");
    }
    if args.what != What::Reserve && args.counted {
        return usage("--counted is for a reserve");
    }
    interrupt::install()?;
    match args.what {
        What::Reserve => {
            let options = reserve::stress::Options { time, counted: args.counted, signal_hz };
            let outcome = reserve::stress::run(options)?;
            verdict(&outcome, outcome.passed(), out)
        }
        What::Objects => {
            let outcome = reserve::objects::run(reserve::objects::Options { time, signal_hz })?;
            verdict(&outcome, outcome.passed(), out)
        }
        What::Volatile => {
            let engine = args.engine.map(|engine| match engine {
                Engine::Scan => volatile::Which::Scan,
                Engine::Tag => volatile::Which::Tag,
            });
            let dir = args.dir.clone();
            let options = volatile::stress::Options { time, engine, dir, signal_hz };
            match volatile::stress::run(&options) {
                Err(why) if why.is_skip() => Ok(writeln!(out, "skipped: {why}")?),
                Err(error) => Err(error.into()),
                Ok(outcome) => verdict(&outcome, outcome.passed(), out),
            }
        }
    }
}

fn verdict(outcome: &dyn Display, passed: bool, out: &mut dyn Write) -> Outcome {
    write!(out, "{outcome}")?;
    match passed {
        true => Ok(()),
        false => Err("the stress failed: see the counts".into()),
    }
}
