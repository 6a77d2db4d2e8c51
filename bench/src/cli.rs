//! The command line of `glebe-bench`: one subcommand a benchmark, and what a child of this program
//! is told to do.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::report::{Options, Report};
use crate::{child, contig, gpu, interrupt, reserve, serve, vmap, volatile, zpool, Outcome};

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
    Reserve(Options),
    /// Mark and unmark beside giving memory back; purging, and a cache under pressure
    Volatile(Options),
    /// What a pool holds of a source tree, beside zram and allocators; store, load, compact
    Zpool(Options),
    /// The cases of the kernel's vmalloc test over positions: trees and lists
    Vmap(Options),
    /// What contiguous memory buys and costs: reads, copies, direct I/O, populating, long runs
    Contig(Options),
    /// Copies between an NVIDIA GPU and registered memory; registering it
    Gpu(Options),
    /// `glebe serve --memcached` beside memcached: requests, hits, recalls
    Serve(Options),
    /// Print the names of the benchmarks
    List,
    /// Do what the parent, which is process PARENT, says
    #[command(hide = true)]
    Child { parent: u32, task: String, words: Vec<String> },
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let command = Cli::parse().command;
    let Err(why) = interrupt::catch(|| dispatch(command)) else { return ExitCode::SUCCESS };
    // Who reads the table may have seen enough.
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    if why.downcast_ref().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    // Standard error may be closed too.
    let _ = writeln!(io::stderr(), "glebe-bench: {why}");
    ExitCode::FAILURE
}

fn dispatch(command: Command) -> Outcome {
    let mut out = io::stdout();
    let (name, run, options): (_, fn(&mut Report) -> Outcome, _) = match command {
        Command::Reserve(options) => ("reserve", reserve::run, options),
        Command::Volatile(options) => ("volatile", volatile::run, options),
        Command::Zpool(options) => ("zpool", zpool::run, options),
        Command::Vmap(options) => ("vmap", vmap::run, options),
        Command::Contig(options) => ("contig", contig::run, options),
        Command::Gpu(options) => ("gpu", gpu::run, options),
        Command::Serve(options) => ("serve", serve::run, options),
        Command::List => {
            let program = Cli::command();
            let all = program.get_subcommands().map(clap::Command::get_name);
            for name in all.filter(|name| !["list", "child"].contains(name)) {
                writeln!(out, "{name}")?;
            }
            return Ok(());
        }
        Command::Child { parent, task, words } => {
            child::attach(parent)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            return in_child(&task, &words, &mut out);
        }
    };
    let mut report = Report::new(name, checked(name, options)?);
    interrupt::install()?;
    run(&mut report)?;
    write!(out, "{}", report.text())?;
    if let Some(path) = &report.options.json {
        fs::write(path, report.json()).map_err(|e| format!("write({}): {e}", path.display()))?;
    }
    match report.passed() {
        true => Ok(()),
        false => Err("a check did not hold".into()),
    }
}

/// The options with an absolute directory that can be written to; ends the program if one of them
/// is for other benchmarks.
fn checked(name: &str, mut options: Options) -> Outcome<Options> {
    let of_some = [
        ("--background", options.background.is_some(), &["reserve"][..]),
        ("--tree", options.tree.is_some(), &["zpool"]),
        ("--largest-mib", options.largest_mib.is_some(), &["contig", "gpu"]),
    ];
    for (option, is_given, of) in of_some {
        if is_given && !of.contains(&name) {
            let text = format!("{option} is for {}", of.join(" and "));
            Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
        }
    }
    options.dir = options.dir.as_deref().map(scratch_dir).transpose()?;
    Ok(options)
}

fn scratch_dir(dir: &Path) -> Outcome<PathBuf> {
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
        ("apart", [job]) => zpool::inside(job, out)?,
        ("serve-glebe", words) => serve::be("glebe", words)?,
        ("serve-memcached", words) => serve::be("memcached", words)?,
        ("inside", [group, job]) => volatile::inside(Path::new(group), job, out)?,
        _ => return Err(format!("{task}: no task of a child").into()),
    }
    Ok(())
}
