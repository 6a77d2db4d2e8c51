//! The `glebe` command: command line, dispatch, exit status.
//!
//! A new subcommand needs a file with its options and a function `run`, a variant of [`Command`],
//! and an arm in [`dispatch`]. `run` writes only to the given output, so that `main` can end every
//! subcommand quietly at a closed pipe.

mod bank;
mod completions;
mod contig;
mod demo;
mod examples;
mod help;
mod man;
mod probe;
#[cfg(feature = "serve")]
mod recall;
mod reclaim;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod size;
mod stats;
mod zpool;

use std::error::Error as Failure;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{FromArgMatches, Parser, Subcommand};
use glebe::contig::{mend_blocks, Error};

const EXIT_STATUS: &str = "0 if all went well, 1 if something failed or a check did not hold, \
    2 if the command line is wrong.";

/// Guaranteed contiguous memory for Linux user space.
#[derive(Parser)]
#[command(name = "glebe", version, max_term_width = 100)]
#[command(after_help = format!("Exit status: {EXIT_STATUS}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say which uses of glebe work here, and what the kernel offers
    Probe(probe::ProbeArgs),
    /// Start a program whose freed memory the kernel may take
    ///
    /// The memory that the program frees stays mapped and is used again without a page fault, but
    /// the kernel may take it as soon as memory is short. The program needs no change: the library
    /// libglebe_malloc.so is preloaded.
    ///
    /// Sets LD_PRELOAD, with the library before what is there, and GLEBE_MALLOC, the options of the
    /// allocator. Of an option that is given more than once the last counts: first come those in
    /// GLEBE_MALLOC, then --option in their order, then --signal, then --stats. Then this process
    /// becomes the program, whose exit status, signals and process number are as if it had been
    /// started directly. What the program starts inherits both variables.
    ///
    /// A program that would run without the library is refused: one that is linked statically, for
    /// another C library (musl) or another processor, or that gains privileges (setuid, setgid,
    /// file capabilities), for which the loader ignores LD_PRELOAD. For a script, the program that
    /// reads it is checked. A program that may be executed but not read is started with a warning,
    /// a file that is neither ELF nor a script (binfmt_misc) without one. A program that brings an
    /// allocator of its own goes on using that, which --stats shows.
    Run(run::RunArgs),
    /// Contiguous memory: what there is, what can be had, setting aside
    Contig(contig::ContigArgs),
    /// Memory that all use until a contiguous run is drawn (root)
    ///
    /// The bank is memory blocks that are kept movable: programs and page cache use them, and the
    /// source `blocks` evacuates them within a fraction of a second, whatever lies there. The
    /// kernel cannot use movable memory for itself: at most a quarter of memory may be so.
    Bank(bank::BankArgs),
    /// Show a reserve at work, compared with the kernel
    Demo(demo::DemoArgs),
    /// Show the statistics of reserves in running programs
    ///
    /// A program serves the statistics of a reserve by calling `serve_stats()`, as the demo does.
    /// Looked for in `$XDG_RUNTIME_DIR/glebe`, `/run/glebe` and `/run/user/UID/glebe`; only a
    /// process of the same user can be read, or any by root.
    Stats(stats::StatsArgs),
    /// Serve idle contiguous memory to other programs, as memcached does
    ///
    /// Makes a reserve and keeps items in what its first class does not use. Any client of
    /// memcached can use it by its text or meta protocol; neither the binary protocol nor UDP is
    /// spoken. The options are memcached's where there is one; those that only tune memcached's own
    /// memory are read and have no effect.
    ///
    /// The first line of the output says where the memory comes from. The server runs in the
    /// foreground; SIGTERM and SIGINT end it and give the memory back, SIGHUP changes nothing. A
    /// socket that systemd hands over is served in place of its own, and systemd is told once the
    /// server is ready.
    ///
    /// When `glebe recall` takes memory, clients see misses of the items that were in it; no value
    /// is torn. The command `stats` counts them as `recalled_items`, and says as `limit_now` what
    /// is left of the limit.
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    /// Take memory inside a running `glebe serve`, and give it back
    ///
    /// Prints how much was taken, in how many runs and how fast; all that there is, if that is less
    /// than was asked for. The memory is given back after the time, or when this command ends
    /// before. Only the user that the server runs as can ask, or root.
    #[cfg(feature = "serve")]
    Recall(recall::RecallArgs),
    /// Purge volatile memory that processes share when memory is short
    ///
    /// For files of `glebe::volatile::Shared`, on tmpfs or memfds, whose processes mark what can
    /// be made again. Runs in the foreground, one process for any number of files. When less than
    /// the margin is left it takes marked memory that no process has pinned: the lowest priority of
    /// all files first, and within it what was marked first. It takes no more than is missing. Page
    /// cache that the kernel can drop counts as left. It
    /// watches the memory cgroups above itself, or those given, and what is available in the
    /// machine; a look at these is due more often the less there is, and when the kernel tells of
    /// usage or of stalls (PSI, or MEMORY_PRESSURE_WATCH).
    ///
    /// Standard error gets one line an event. A path may come to name another file, which is then
    /// purged too; the one before is kept until no process uses it. A file that no process uses is
    /// not volatile, and nothing of it goes. SIGTERM and SIGINT end the command, a second one at
    /// once; SIGHUP opens the files anew. systemd is told when it is ready.
    ///
    /// One purger a file: the second ends with status 1, or waits for the first with --wait.
    /// --once and --dry-run work beside one.
    ///
    /// As root, with files of others: what a file holds is never taken as an address or a length
    /// that was not checked. Symbolic links are refused in the last part of a path; FIFOs, devices
    /// and files that are not on tmpfs are not opened; a file that is cut meanwhile is left alone.
    /// Whoever may write a file decides what is purged of it, can keep it from being purged (by
    /// pins, or the lock of its purger), and can make looks at it slow: give each user whom you do
    /// not trust a purger of its own, as that user. Names of processes in the log are what these
    /// wrote into the file themselves. Directories of a path should be writable by none but those
    /// whose files may be purged.
    Reclaim(reclaim::ReclaimArgs),
    /// Print the size classes of a pool of compressed objects
    Zpool(zpool::ZpoolArgs),
    /// Write the manual pages into a directory
    Man(man::ManArgs),
    /// Print the completions of a shell
    Completions(completions::CompletionsArgs),
}

/// An [`io::Error`] means that writing the output failed.
type Outcome = Result<(), Box<dyn Failure>>;

/// How long `mend` waits for the lock of the memory blocks.
const MEND_PATIENCE: Duration = Duration::from_millis(500);

/// Repairs the memory blocks that killed processes left. Reads one file if nothing needs repair. A
/// failure does not stop the command.
fn mend(command: &Command) {
    // `glebe bank` mends by itself. The others do not use the machine's memory, and programs read
    // their output.
    if matches!(
        command,
        Command::Bank(_)
            | Command::Run(_)
            | Command::Zpool(_)
            | Command::Man(_)
            | Command::Completions(_)
    ) {
        return;
    }
    let told = match mend_blocks(MEND_PATIENCE) {
        Ok(notes) => notes,
        // The holder of the lock has mended.
        Err(Error::Os(error)) if error.kind() == io::ErrorKind::TimedOut => Vec::new(),
        Err(error) => vec![error.to_string()],
    };
    for note in told {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "glebe: {note}");
    }
}

const USAGE: u8 = 2;

#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Failure for Usage {}

fn usage<T>(why: impl Into<String>) -> Result<T, Box<dyn Failure>> {
    Err(Box::new(Usage(why.into())))
}

fn dispatch(command: &Command, out: &mut dyn Write) -> Outcome {
    match command {
        Command::Probe(args) => probe::run(args, out),
        Command::Run(args) => run::run(args, out),
        Command::Contig(args) => contig::run(args, out),
        Command::Bank(args) => bank::run(args, out),
        Command::Demo(args) => demo::run(args, out),
        Command::Stats(args) => stats::run(args, out),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args, out),
        #[cfg(feature = "serve")]
        Command::Recall(args) => recall::run(args, out),
        Command::Reclaim(args) => reclaim::run(args, out),
        Command::Zpool(args) => zpool::run(args, out),
        Command::Man(args) => man::run(args, out),
        Command::Completions(args) => completions::run(args, out),
    }
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command = help::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(said) => return other_than_run(&said),
    };
    mend(&cli.command);
    let mut out = BufWriter::new(io::stdout().lock());
    // The details of a failed check must reach the user.
    let outcome = match dispatch(&cli.command, &mut out) {
        Err(error) if !error.is::<io::Error>() => out.flush().map_err(Into::into).and(Err(error)),
        other => other.and_then(|()| Ok(out.flush()?)),
    };
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // Dropping the buffer would repeat the failed write.
    drop(out.into_parts());
    failed(&*error)
}

/// Prints the error, unless the reader closed the pipe.
fn failed(error: &(dyn Failure + 'static)) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "glebe: {error}");
    match error.downcast_ref::<run::NotRun>() {
        Some(not_run) => ExitCode::from(not_run.status),
        None if error.is::<Usage>() => ExitCode::from(USAGE),
        None => ExitCode::FAILURE,
    }
}

/// Prints help and version to standard output, errors to standard error.
fn other_than_run(said: &clap::Error) -> ExitCode {
    let printed = said.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if said.use_stderr() => ExitCode::from(USAGE),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Returns true if the reader closed the pipe (`| head`).
fn is_closed_pipe(error: &(dyn Failure + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
