//! The `glebe` command: command line, dispatch, exit status.
//!
//! A new subcommand needs a file with its options and a function `run`, a variant of [`Command`],
//! and an arm in [`dispatch`]. `run` writes to standard output only through `out`, so that `main`
//! can end every subcommand quietly at a closed pipe.

mod bank;
mod completions;
mod contig;
mod demo;
mod examples;
mod help;
#[cfg(feature = "serve")]
mod lease;
#[cfg(feature = "serve")]
mod lend;
mod man;
mod probe;
#[cfg(feature = "serve")]
mod recall;
mod reclaim;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod stats;
#[cfg(feature = "top")]
mod top;
mod zpool;

use std::error::Error as Failure;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{FromArgMatches, Parser, Subcommand};
use glebe::contig::{mend_blocks, Error};
use glebe::internal::size;

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
    /// Start a program with glebe's allocator, or leased huge pages
    ///
    /// With --malloc, the memory that the program frees stays mapped and is used again without a
    /// page fault, but the kernel may take it as soon as memory is short. With --contig, requests
    /// for huge pages (MAP_HUGETLB) get memory of `glebe serve --leases`, and the program tells at
    /// its end what it got. The program needs no change: the command preloads libglebe_malloc.so or
    /// libglebe_huge.so.
    ///
    /// The command puts the libraries first in LD_PRELOAD, the allocator's options into
    /// GLEBE_MALLOC, and the options of --contig into GLEBE_HUGE. If an option of the allocator is
    /// given twice, the last one counts: the command reads GLEBE_MALLOC first, then each --option,
    /// then --signal, then --stats. Then this process becomes the program, so exit status, signals
    /// and process number are the program's own. Programs that the program starts inherit the
    /// variables. With --supervise, and with --contig for a static program, it stays as the
    /// program's parent instead: it serves calls for huge pages by seccomp(2), passes signals on,
    /// and ends with the program's exit status when the last process of the tree has ended.
    ///
    /// The command refuses a program that would run without the library: a static one with
    /// --malloc, one for another C library (musl) or another processor, and one that gains
    /// privileges (setuid,
    /// setgid, file capabilities), because the loader then ignores LD_PRELOAD. For a script it
    /// checks the interpreter. It warns about a program that it may execute but not read. It starts
    /// other files (binfmt_misc) without a check. A program with an allocator of its own keeps
    /// using it; --stats shows that.
    Run(run::RunArgs),
    /// Look at contiguous memory, ask for a run, set memory aside
    Contig(contig::ContigArgs),
    /// Lend memory to programs until a contiguous run needs it (root)
    ///
    /// The bank is a set of movable memory blocks. Programs and page cache use the blocks. For a
    /// contiguous run, the source `blocks` moves the contents of blocks elsewhere within a fraction
    /// of a second, and draws the blocks' pages into a pool of huge pages. The bank takes at most a
    /// quarter of memory, because the kernel cannot use movable memory for itself.
    Bank(bank::BankArgs),
    /// Show a reserve at work, compared with the kernel
    Demo(demo::DemoArgs),
    /// Show the statistics of reserves in running programs and of leases
    ///
    /// A program serves the statistics of a reserve by calling `serve_stats()`, as the demo does.
    /// Without --pid and --dir, the daemon that lends memory is asked, too.
    /// This command looks for the sockets in `$XDG_RUNTIME_DIR/glebe`, `/run/glebe`,
    /// `/run/user/UID/glebe`, and in the folder `glebe-serve/glebe` of `/run` and of each
    /// `/run/user/UID`. Root can read all, other users their own.
    Stats(stats::StatsArgs),
    /// Show reserves, leases and memory live in the terminal
    ///
    /// A line for each reserve has its length, the memory in first-class blocks, of caches, and
    /// free; blocks given in a second, hits of its caches in percent, and pages that left the
    /// caches in a second. Below are a bar of the picked reserve, the times to give a block, and
    /// the leases of the usual `glebe serve --leases`, which have a sign of their own in the bar of
    /// its reserve. Above are the machine's memory, and how much of its free memory lies in runs of
    /// at least one huge page. Key h explains the columns and keys. Root sees the reserves of all
    /// users, the bank of movable memory, and a map (key m), which shows longer runs.
    #[cfg(feature = "top")]
    Top(top::TopArgs),
    /// Serve idle contiguous memory to other programs, as memcached does
    ///
    /// The server makes a reserve and keeps items in its idle pages. Clients use memcached's text
    /// or meta protocol; the server has no binary protocol and no UDP. Options have memcached's
    /// names. Options that only tune memcached's own memory are accepted and have no effect.
    ///
    /// The first line of the output names the kind of memory. The server runs in the foreground.
    /// SIGTERM and SIGINT end it and give the memory back; SIGHUP reads the file of --auth-file,
    /// the certificates and the key again. If systemd hands over a socket, the server uses that
    /// one. The server tells systemd when it is ready.
    ///
    /// If `glebe recall` takes memory, clients miss the items that were in it; no value is torn.
    /// The command `stats` counts these items as `recalled_items`, and shows the remaining limit as
    /// `limit_now`.
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    /// Take memory inside a running `glebe serve`, and give it back
    ///
    /// The command prints how much memory it took, in how many contiguous runs, and how fast. If
    /// the server has less than SIZE, the command takes all memory that the server has. The command
    /// gives the memory back after TIME, or when the command ends earlier. Only root and the
    /// server's user may run the command.
    #[cfg(feature = "serve")]
    Recall(recall::RecallArgs),
    /// Start a program with huge pages of a running `glebe serve`
    ///
    /// The server needs the option --leases. The program inherits one open file with the memory,
    /// zeroed. GLEBE_LEASE_FD is the file's
    /// number, GLEBE_LEASE_BYTES its length. The program maps the file (mmap, MAP_SHARED), or opens
    /// /proc/self/fd/NUMBER by name, as QEMU's memory-backend-file does. The lease ends when the
    /// program, and every process that it started, has ended.
    #[cfg(feature = "serve")]
    Lease(lease::LeaseArgs),
    /// List the leases and shared caches of a running `glebe serve`
    ///
    /// Root sees all of them, other users their own. With --json, `lease` and `pid` of a shared
    /// cache are null, since it belongs to no process.
    #[cfg(feature = "serve")]
    Leases(lease::LeasesArgs),
    /// Lend idle memory of a running `glebe serve` to a Mooncake Store
    ///
    /// The server needs the option --leases. The command takes revocable leases, one for each
    /// segment, and a helper process mounts them with Mooncake's own Python package. When the
    /// server wants memory back, the helper unmounts the segment. If it does not answer within
    /// 20 ms, the command kills it, and its other segments end, too. Only then does the server get
    /// the memory.
    ///
    /// A segment that was taken back rests for --rest. If recalls come sooner than the segment
    /// pays, each of them doubles the rest, up to --rest-max. A lending that pays halves it. A
    /// segment pays if it was lent for 100 times as long as its lease, its mount and its refill at
    /// 1 GiB/s take: about half a minute for 256 MiB.
    ///
    /// The command runs in the foreground. SIGTERM and SIGINT unmount all segments and end it.
    /// Standard error names a lasting trouble once, and each recall and kill.
    ///
    /// Mooncake's transport has no authentication and no encryption. Everybody who reaches this
    /// host's ports can read and write the segments, and may gain control of the helper process.
    /// Use the command between hosts that trust each other, and not as root but as a user of the
    /// group `glebe`.
    #[cfg(feature = "serve")]
    Lend(lend::LendArgs),
    /// When memory is short, purge volatile memory that processes share
    ///
    /// The files are files of `glebe::volatile::Shared`, on tmpfs or as memfds. Processes mark the
    /// contents that they can make again. The command runs in the foreground; one process serves
    /// any number of files. If less memory than the margin is left, the command purges marked
    /// memory that no process has pinned: the lowest priority of all files first, then the oldest
    /// marks. The command purges only as much as is missing. Page cache that the kernel can drop
    /// counts as memory that is left. The command looks at the memory cgroups above itself, or at
    /// the given cgroups, and at the machine's available memory. The command looks more often if
    /// less memory is left, and when the kernel reports usage or stalls (PSI, or
    /// MEMORY_PRESSURE_WATCH).
    ///
    /// The log on standard error has one line for each event. If a path later names another file,
    /// the command purges that file too, and keeps the earlier file until no process uses it. The
    /// command purges nothing of a file that no process uses, because such a file is not volatile.
    /// SIGTERM and SIGINT end the command; a second such signal ends it at once. SIGHUP opens the
    /// files again. The command tells systemd when it is ready.
    ///
    /// A file has one purger. A second purger ends with status 1, or waits for the first if --wait
    /// is given. --once and --dry-run work beside a purger.
    ///
    /// Run as root with other users' files, the command checks each address and length that it
    /// reads from a file. It refuses a symbolic link as the last part of a path. It opens no FIFO,
    /// no device and no file outside tmpfs, and leaves a file alone after another process truncates
    /// it. A user who may write a file decides what the command purges of the file, can prevent the
    /// purge (by pins, or by the lock of the file's purger), and can slow the looks at the file. So
    /// for each user whom you do not trust, run a separate purger as that user. The log shows
    /// process numbers as the processes wrote them into the file. Only users whose files the
    /// command may purge should have write access to the directories of a path.
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

const MEND_PATIENCE: Duration = Duration::from_millis(500);

/// Repairs memory blocks that killed processes left. A failure does not stop the command.
fn mend(command: &Command) {
    // `glebe bank` makes the repairs by itself. The other commands listed here do not use memory
    // blocks.
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
    // `glebe top` only reads, so it repairs nothing.
    #[cfg(feature = "top")]
    if matches!(command, Command::Top(_)) {
        return;
    }
    let told = match mend_blocks(MEND_PATIENCE) {
        Ok(notes) => notes,
        // The process that holds the lock makes the repairs.
        Err(Error::Os(error)) if error.kind() == io::ErrorKind::TimedOut => Vec::new(),
        Err(error) => vec![error.to_string()],
    };
    for note in told {
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
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(args, out),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args, out),
        #[cfg(feature = "serve")]
        Command::Recall(args) => recall::run(args, out),
        #[cfg(feature = "serve")]
        Command::Lease(args) => lease::run(args),
        #[cfg(feature = "serve")]
        Command::Leases(args) => lease::list(args, out),
        #[cfg(feature = "serve")]
        Command::Lend(args) => lend::run(args, out),
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
    // Flushes even after an error, because the details of a failed check must reach the user.
    let outcome = match dispatch(&cli.command, &mut out) {
        Err(error) if !error.is::<io::Error>() => out.flush().map_err(Into::into).and(Err(error)),
        other => other.and_then(|()| Ok(out.flush()?)),
    };
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // Takes the buffer apart, because its drop would repeat a failed write.
    drop(out.into_parts());
    failed(&*error)
}

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

/// Prints clap's help, version or error, and returns the exit status.
fn other_than_run(said: &clap::Error) -> ExitCode {
    let printed = said.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if said.use_stderr() => ExitCode::from(USAGE),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn is_closed_pipe(error: &(dyn Failure + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
