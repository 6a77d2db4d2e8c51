//! `glebe run` starts a program with glebe's allocator, or with huge pages of the daemon.
//!
//! The flags `--malloc` and `--contig` add a library each to LD_PRELOAD, and options set
//! GLEBE_MALLOC and GLEBE_HUGE. This process becomes the program (execve), which keeps process
//! number, exit status and signals. `glebe run` refuses a program that would run without the
//! library, because the user would not notice that.

pub mod broken_pipe;
mod check;
#[cfg(feature = "serve")]
mod contig;
mod environment;
mod image;
mod library;
mod lookup;
mod secure;
#[cfg(feature = "serve")]
mod supervisor;

use std::env;
use std::error::Error as Failure;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueHint;

use crate::{usage, Outcome};

pub const EXIT_STATUS: &str = "That of the program. If it was not started: 2 if the command line \
    is wrong, 125 if glebe refused, 126 if the program cannot be executed, 127 if it was not \
    found.";

/// Options of `glebe run`.
#[derive(clap::Args)]
#[command(after_help = format!("Exit status: {EXIT_STATUS}"))]
#[command(override_usage = "glebe run --malloc|--contig [OPTIONS] -- PROGRAM [ARGUMENT]...")]
pub struct RunArgs {
    /// Replace the program's malloc by glebe-malloc, whose free memory the kernel may take
    #[arg(long)]
    malloc: bool,
    /// Print the allocator's statistics when the program ends, as text to standard error
    ///
    /// WHERE is a format (`text`, `json` or `openmetrics`), a file, or both, as in `json:FILE`. In
    /// the name of the file, %p is the process id, and %% is %. If the name has %p, each program
    /// that the program starts prints its own statistics too, into its own file. A program that is
    /// killed, or ends by _exit(2) as some shells do, prints no statistics.
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true)]
    stats: Option<Option<OsString>>,
    /// Print the statistics of --stats at each SIGNAL: HUP, USR1, USR2, WINCH or RTMIN+N
    #[arg(long, value_name = "SIGNAL", value_parser = environment::signal)]
    signal: Option<String>,
    /// The library to preload, or the folder of the libraries
    ///
    /// With both --malloc and --contig, give the folder. Without --lib, the command looks for
    /// libglebe_malloc.so and libglebe_huge.so in its own folder, and then, from that folder, in
    /// ../lib, ../lib/ARCH-linux-gnu and ../lib64.
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    huge: contig::HugeArgs,
    /// Print what would be set and started, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// A further option of the allocator, for example thread=off; may be repeated
    #[arg(long = "option", value_name = "NAME[=VALUE]")]
    options: Vec<OsString>,
    /// The program and its arguments; the command searches PATH for a name without a slash
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

#[derive(Debug)]
pub struct NotRun {
    pub status: u8,
    why: String,
}

impl NotRun {
    fn refused(why: impl Into<String>) -> Self {
        Self { status: 125, why: why.into() }
    }

    fn cannot(why: impl Into<String>) -> Self {
        Self { status: 126, why: why.into() }
    }

    fn missing(why: impl Into<String>) -> Self {
        Self { status: 127, why: why.into() }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Failure for NotRun {}

/// Becomes the program, unless it needs a supervisor. Returns after a failure, or a dry run.
pub fn run(args: &RunArgs, out: &mut dyn Write) -> Outcome {
    let words = words(args)?;
    let (name, arguments) = args.command.split_first().expect("a value is required");
    let program = lookup::find(name, env::var_os("PATH").as_deref())?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    broken_pipe::keep(&mut command);
    #[cfg(feature = "serve")]
    if let Some(wishes) = args.huge.supervision(&program, args.malloc)? {
        return supervised(command, &wishes, args.dry_run, out);
    }
    preload(args, &program, &mut command)?;
    if !words.is_empty() {
        let before = env::var_os(environment::OPTIONS).unwrap_or_default();
        command.env(environment::OPTIONS, environment::options(&before, &words)?);
    }
    #[cfg(feature = "serve")]
    if args.huge.contig {
        warn(args.huge.check()?);
        command.env(contig::VARIABLE, args.huge.words());
        command.envs(args.huge.socket()?.map(|path| (contig::SOCKET, path)));
    }
    if args.dry_run {
        return Ok(explain(&command, out)?);
    }
    Err(Box::new(not_executed(&program, &command.exec())))
}

/// Sets LD_PRELOAD.
fn preload(args: &RunArgs, program: &Path, command: &mut Command) -> Result<(), NotRun> {
    let mut preloads = env::var_os(environment::PRELOAD);
    if libraries(args).count() > 1 && args.lib.as_ref().is_some_and(|lib| lib.is_file()) {
        let why = "--lib names one file, and two libraries are needed: give their folder";
        return Err(NotRun::refused(why));
    }
    for file in libraries(args) {
        let library = library::find(args.lib.as_deref(), file)?;
        warn(check::check(program, library.architecture)?);
        preloads = Some(environment::preloads(&library.path, preloads));
    }
    command.env(environment::PRELOAD, preloads.unwrap_or_default());
    Ok(())
}

fn warn(warning: Option<String>) {
    if let Some(warning) = warning {
        let _ = writeln!(io::stderr(), "glebe: {warning}");
    }
}

/// Runs the program, and ends as it does.
#[cfg(feature = "serve")]
fn supervised(
    command: Command,
    wishes: &supervisor::Wishes,
    is_dry: bool,
    out: &mut dyn Write,
) -> Outcome {
    if is_dry {
        writeln!(out, "under a supervisor, by seccomp:")?;
        return Ok(explain(&command, out)?);
    }
    std::process::exit(supervisor::supervise(command, wishes)?.into())
}

fn explain(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default();
        writeln!(out, "{}={}", name.to_string_lossy(), value.to_string_lossy())?;
    }
    write!(out, "{}", command.get_program().to_string_lossy())?;
    command.get_args().try_for_each(|word| write!(out, " {}", word.to_string_lossy()))?;
    writeln!(out)
}

/// Returns the names of the libraries to preload, the last one first.
fn libraries(args: &RunArgs) -> impl Iterator<Item = &'static str> {
    #[cfg(feature = "serve")]
    let contig = args.huge.contig.then_some(library::HUGE);
    #[cfg(not(feature = "serve"))]
    let contig = None;
    contig.into_iter().chain(args.malloc.then_some(library::MALLOC))
}

/// Returns the allocator's options for the flags. If an option occurs twice, the allocator uses the
/// last. Fails if one is given without `--malloc`, or nothing is asked for.
fn words(args: &RunArgs) -> Result<Vec<OsString>, Box<dyn Failure>> {
    if !args.malloc {
        let of_malloc = [
            ("--stats", args.stats.is_some()),
            ("--signal", args.signal.is_some()),
            ("--option", !args.options.is_empty()),
        ];
        return match of_malloc.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => usage(format!("{flag} needs --malloc: it is an option of that")),
            None if libraries(args).next().is_some() => Ok(Vec::new()),
            None => usage("nothing is asked for: say --malloc or --contig"),
        };
    }
    let mut words = Vec::new();
    for word in &args.options {
        words.push(environment::word(word)?);
    }
    words.extend(args.signal.iter().map(|signal| format!("signal={signal}").into()));
    if let Some(place) = &args.stats {
        words.extend(environment::stats(place.as_deref())?);
    }
    Ok(words)
}

pub fn not_executed(program: &Path, error: &io::Error) -> NotRun {
    let why = format!("execve({}): {error}", program.display());
    match error.kind() {
        io::ErrorKind::NotFound => NotRun::missing(why),
        _ => NotRun::cannot(why),
    }
}
