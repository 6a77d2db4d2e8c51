//! The command line of `glebe-bench`: one subcommand a benchmark, and what a child of this program
//! is told to do.
//!
//! To add a benchmark, add its variant of `Command` and its arm in `bench`.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use glebe::units::Bytes;

use crate::report::Report;
use crate::{child, contig, gpu, interrupt, reserve, vmap, volatile, zpool};

type Outcome = Result<(), Box<dyn Error>>;

/// Measures glebe beside what the kernel and others offer.
#[derive(Parser)]
#[command(name = "glebe-bench", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "Exit status: 0 if all went well, 1 if something failed or a check did not \
    hold, 2 if the command line is wrong."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Blocks under load, what the load pays, pages in and out, growth
    Reserve {
        #[command(flatten)]
        common: Common,
        /// A shell command that ends, as background load instead of a build
        #[arg(long, value_name = "CMD")]
        background: Option<String>,
    },
    /// Mark and unmark beside giving memory back; purging, and a cache under pressure
    Volatile {
        #[command(flatten)]
        common: Common,
    },
    /// What a pool holds of a source tree, beside zram and allocators; store, load, compact
    Zpool {
        #[command(flatten)]
        common: Common,
        /// Store the files of this directory, whatever is there
        #[arg(long, value_name = "DIR")]
        tree: Option<PathBuf>,
    },
    /// The cases of the kernel's vmalloc test over positions: trees and lists
    Vmap {
        #[command(flatten)]
        common: Common,
    },
    /// What contiguous memory buys and costs: reads, copies, direct I/O, populating, long runs
    Contig {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        largest: Largest,
    },
    /// Copies between an NVIDIA GPU and registered memory; registering it
    Gpu {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        largest: Largest,
    },
    /// Print the names of the benchmarks
    List,
    /// Do what the parent, which is process PARENT, says
    #[command(hide = true)]
    Child { parent: u32, task: String, words: Vec<String> },
}

/// What every benchmark takes.
#[derive(clap::Args)]
struct Common {
    /// Few samples: too few to compare
    #[arg(long)]
    quick: bool,
    /// Write the JSON here too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where scratch files go; zpool: where a kernel source tree is looked for first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Largest {
    /// The largest memory to work on, in MiB
    #[arg(long, value_name = "N")]
    largest_mib: Option<u64>,
}

impl Largest {
    fn bytes(&self) -> Option<Bytes> {
        self.largest_mib.map(|mib| Bytes::new(mib.saturating_mul(1 << 20)))
    }
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let mut out = io::stdout().lock();
    let outcome = match interrupt::catch(|| dispatch(&command, &mut out)) {
        Ok(outcome) => outcome.and_then(|()| Ok(out.flush()?)),
        Err(interrupted) => {
            interrupt::end_by(interrupted);
            return ExitCode::FAILURE;
        }
    };
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    // Standard error may be closed too.
    let _ = writeln!(io::stderr(), "glebe-bench: {error}");
    ExitCode::FAILURE
}

fn dispatch(command: &Command, out: &mut dyn Write) -> Outcome {
    match command {
        Command::List => {
            let program = Cli::command();
            let all = program.get_subcommands().map(clap::Command::get_name);
            for name in all.filter(|name| !["list", "child"].contains(name)) {
                writeln!(out, "{name}")?;
            }
            Ok(())
        }
        Command::Child { parent, task, words } => {
            child::attach(*parent)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            in_child(task, &words, out)
        }
        _ => bench(command, out),
    }
}

fn bench(command: &Command, out: &mut dyn Write) -> Outcome {
    let (Command::Reserve { common, .. }
    | Command::Volatile { common }
    | Command::Zpool { common, .. }
    | Command::Vmap { common }
    | Command::Contig { common, .. }
    | Command::Gpu { common, .. }) = command
    else {
        return Ok(());
    };
    let dir = common.dir.as_deref().map(scratch_dir).transpose()?;
    let words: Vec<String> = std::env::args().collect();
    let (quick, command_line) = (common.quick, words.join(" "));
    interrupt::install()?;
    let report = match command {
        Command::Reserve { background, .. } => {
            let background = background.clone();
            let command = command_line;
            let options = reserve::measure::Options { quick, background, dir, command };
            reserve::measure::run(&options)?
        }
        Command::Volatile { .. } => {
            let command = command_line;
            volatile::measure::run(&volatile::measure::Options { quick, dir, command })?
        }
        Command::Zpool { tree, .. } => {
            let (tree, command) = (tree.clone(), command_line);
            zpool::measure::run(&zpool::measure::Options { quick, dir, tree, command })?
        }
        Command::Contig { largest, .. } => {
            contig::run(quick, largest.bytes(), dir.as_deref(), &command_line)?
        }
        Command::Gpu { largest, .. } => gpu::run(quick, largest.bytes(), &command_line),
        _ => vmap::run(quick, &command_line),
    };
    tell(&report, common.json.as_deref(), out)
}

/// Writes the table, and the JSON where it is wanted; an error if a check did not hold.
fn tell(report: &Report, json: Option<&Path>, out: &mut dyn Write) -> Outcome {
    write!(out, "{}", report.text())?;
    if let Some(path) = json {
        let failed = |e| format!("write({}): {e}", path.display());
        fs::write(path, report.json()).map_err(failed)?;
    }
    match report.passed() {
        true => Ok(()),
        false => Err("a check did not hold".into()),
    }
}

/// The directory as an absolute path, if it is one that can be written to.
fn scratch_dir(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let refused = |e| format!("scratch files in {}: {e}", dir.display());
    let absolute = dir.canonicalize().map_err(refused)?;
    tempfile::tempfile_in(&absolute).map_err(refused)?;
    Ok(absolute)
}

/// In a child: does its task.
fn in_child(task: &str, words: &[&str], out: &mut dyn Write) -> Outcome {
    match (task, words) {
        ("fragment", [most]) => contig::fragment::inside(most.parse()?, false, out)?,
        ("busy", [most]) => contig::fragment::inside(most.parse()?, true, out)?,
        ("apart", [job]) => zpool::apart::inside(job, out)?,
        ("inside", [group, job]) => volatile::inside(Path::new(group), job, out)?,
        _ => return Err(format!("{task}: no task of a child").into()),
    }
    Ok(())
}
