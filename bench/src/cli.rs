//! The command line of `glebe-bench`, and the tasks of its children.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::report::{Options, Report};
use crate::{
    child, contig, hosts, interrupt, lease, malloc, python, reserve, run, serve, swap, vmap,
    volatile, zpool, Outcome,
};

type Run = fn(&mut Report) -> Outcome;

const ALL: [(&str, &str, Run); 12] = [
    ("reserve", "Blocks under load, what the load pays, pages in and out, growth", reserve::run),
    ("volatile", "Mark and unmark beside giving memory back; purging, a cache", volatile::run),
    ("zpool", "What a pool holds, beside zram and allocators; store, load, compact", zpool::run),
    (
        "swap",
        "Memory beyond its budget beside the kernel's swap on zram; three policies",
        swap::run,
    ),
    ("vmap", "The cases of the kernel's vmalloc test over positions: trees and lists", vmap::run),
    ("contig", "What contiguous memory buys and costs: reads, direct I/O, long runs", contig::run),
    ("serve", "`glebe serve --memcached` beside memcached: requests, hits, recalls", serve::run),
    ("lease", "Huge pages of a daemon beside a standing pool; revoked, killed clients", lease::run),
    ("run", "PostgreSQL and Java started with huge pages of a server or of the pool", run::run),
    ("hosts", "Idle memory of hosts as a Mooncake store: recalls, hits, growth", hosts::run),
    ("python", "The wheel for Python beside lmdb, diskcache, zict; a NumPy pipeline", python::run),
    ("malloc", "Freed memory reused and given back; real programs, by preloading", malloc::run),
];

/// Measures glebe beside what the kernel and others offer.
#[derive(Parser)]
#[command(name = "glebe-bench", version, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 if all went well, 1 if something failed or a check did not \
    hold, 2 if the command line is wrong."
)]
struct Cli {
    /// The benchmark
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    name: String,
    #[command(flatten)]
    options: Options,
}

fn names() -> impl Iterator<Item = PossibleValue> {
    let list = PossibleValue::new("list").help("Print the names of the benchmarks");
    ALL.into_iter().map(|(name, what, _)| PossibleValue::new(name).help(what)).chain([list])
}

pub(crate) fn main() -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut out = io::stdout();
    let done = interrupt::catch(|| match &words[..] {
        [_, "child", parent, task, words @ ..] => in_child(parent, task, words, &mut out),
        _ => dispatch(Cli::parse(), &mut out),
    });
    let Err(why) = done else { return ExitCode::SUCCESS };
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "glebe-bench: {why}");
    ExitCode::FAILURE
}

fn dispatch(Cli { name, options }: Cli, out: &mut dyn Write) -> Outcome {
    let Some((name, _, run)) = ALL.into_iter().find(|(of, ..)| *of == name) else {
        return Ok(ALL.iter().try_for_each(|(name, ..)| writeln!(out, "{name}"))?);
    };
    let mut report = Report::new(name, checked(name, options)?);
    interrupt::install()?;
    run(&mut report)?;
    write!(out, "{}", report.text())?;
    if let Some(path) = &report.options.json {
        fs::write(path, report.json()).map_err(|e| format!("write({}): {e}", path.display()))?;
    }
    report.passed().then_some(()).ok_or_else(|| "a check did not hold".into())
}

/// Makes the option `dir` absolute. Fails if no file can be made there. Ends the program if an
/// option is for other benchmarks.
fn checked(name: &str, mut options: Options) -> Outcome<Options> {
    let of_some = [
        ("--background", options.background.is_some(), &["reserve"][..]),
        ("--tree", options.tree.is_some(), &["zpool"]),
        ("--lib", options.lib.is_some(), &["malloc"]),
        ("--only", !options.only.is_empty(), &["malloc", "swap"]),
    ];
    for (option, is_given, of) in of_some {
        if is_given && !of.contains(&name) {
            let text = format!("{option} is for {}", of.join(" and "));
            Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
        }
    }
    if let Some(dir) = &mut options.dir {
        let refused = format!("scratch files in {}", dir.display());
        *dir = dir.canonicalize().map_err(|e| format!("{refused}: {e}"))?;
        tempfile::tempfile_in(dir).map_err(|e| format!("{refused}: {e}"))?;
    }
    Ok(options)
}

fn in_child(parent: &str, task: &str, words: &[&str], out: &mut dyn Write) -> Outcome {
    child::attach(parent.parse()?)?;
    match (task, words) {
        ("fragment", [most]) => contig::fragment::inside(most.parse()?, false, out),
        ("busy", [most]) => contig::fragment::inside(most.parse()?, true, out),
        ("apart", [job]) => Ok(writeln!(out, "{}", zpool::inside(job)?)?),
        ("serve-glebe", words) => serve::be("glebe", words),
        ("lease-daemon", [path]) => lease::be_daemon(Path::new(path), out),
        ("lease-hold", [path, pages]) => lease::hold(Path::new(path), pages.parse()?, out),
        ("lease-storm", [path]) => lease::storm(Path::new(path), out),
        ("hosts-recall", [path]) => hosts::recall(Path::new(path), out),
        ("serve-memcached", words) => serve::be("memcached", words),
        ("inside", [group, job]) => {
            Ok(writeln!(out, "{}", volatile::inside(Path::new(group), job)?)?)
        }
        ("malloc", [group, job]) => malloc::inside(Path::new(group), job, out),
        ("swap-run", [group, job]) => {
            Ok(writeln!(out, "{}", swap::inside(Path::new(group), job)?)?)
        }
        ("python-pipeline", [group, job]) => python::inside(Path::new(group), job, out),
        ("malloc-program", [task]) => malloc::start(task, out),
        ("pin-shared", [path]) => volatile::pin_shared(Path::new(path), out),
        _ => Err(format!("{task}: no task of a child").into()),
    }
}
