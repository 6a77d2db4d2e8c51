//! Measures real programs: compilers of C and of template-heavy C++, two jobs each; a Python
//! program that builds and drops large structures; Redis under its own benchmark.
//!
//! The C code is mimalloc's, which this benchmark was built with. All output but that of Redis must
//! be equal with every allocator.

use std::path::Path;
use std::process::Command;

use glebe::units::Bytes;

use super::peer::{Peer, Peers, BASE_PAGES, GLIBC, MIMALLOC};
use super::ran::{write, Ran, CPU};
use super::{is_wanted, redis};
use crate::report::{Report, GLEBE};
use crate::turns::{median, turns};
use crate::Outcome;

/// Function that makes a command with its files in a folder, for a quick or a full run. Fails if
/// the program is missing.
type Make = fn(&Path, bool) -> Outcome<Command>;

const PROGRAMS: [(&str, Make); 4] = [
    ("program_c", compile_c),
    ("program_cpp", build_cpp),
    ("program_python", |dir, quick| python(dir, quick, false)),
    ("program_python_malloc", |dir, quick| python(dir, quick, true)),
];
pub(super) const REDIS: &str = "program_redis";
/// Source files of mimalloc that are compiled separately. They include the other files.
const C_FILES: [&str; 17] = [
    "alloc",
    "alloc-aligned",
    "alloc-posix",
    "arena",
    "arena-meta",
    "bitmap",
    "heap",
    "init",
    "libc",
    "options",
    "os",
    "page",
    "page-map",
    "random",
    "stats",
    "theap",
    "threadlocal",
];
const C_FILES_QUICK: [&str; 2] = ["libc", "threadlocal"];
const CPP_DEPTHS: usize = 5;

pub(super) fn cases() -> impl Iterator<Item = (String, &'static str)> {
    PROGRAMS.iter().map(|(case, _)| *case).chain([REDIS]).map(|case| (case.to_owned(), CPU))
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let quick = report.options.quick;
    let scratch = report.options.scratch();
    let dir = tempfile::Builder::new().prefix("glebe-bench-").tempdir_in(scratch)?;
    let whom = |peer: &&Peer| match quick {
        true => [GLEBE, GLIBC, MIMALLOC].contains(&peer.who),
        false => peer.who != BASE_PAGES,
    };
    let peers_here: Vec<&Peer> = peers.here.iter().filter(whom).collect();
    let is_wanted = |case: &str, report: &Report| is_wanted(case, "programs", report);
    for (case, make) in PROGRAMS {
        if is_wanted(case, report) {
            run(case, make, dir.path(), rounds(case, report), &peers_here, report)?;
        }
    }
    if is_wanted(REDIS, report) {
        redis::measure(dir.path(), rounds(REDIS, report), &peers_here, report)?;
    }
    for (case, unit) in cases() {
        if !is_wanted(&case, report) {
            continue;
        }
        peers.name_absent(&case, unit, report);
        let others = peers_here.iter().filter(|peer| peer.who != GLEBE);
        let best = others.map(|peer| median(report.of(&case, peer.who, unit)));
        let best = best.fold(f64::INFINITY, f64::min);
        let ratio = best / median(report.of(&case, GLEBE, unit));
        report.ratio(&format!("{case}_vs_best"), ratio);
    }
    report.note(
        "program_c: 17 files of mimalloc's compiled by cc -O2, two at a time; program_cpp: five \
         files of maps, sorts and calls to come by c++; program_python: JSON and objects \
         built and dropped, _malloc without Python's own pools; program_redis: the server alone, \
         while redis-benchmark, which is not preloaded, asks. X_vs_best: the best peer's CPU time \
         over glebe's. Peaks are of the one process that had the most.",
    );
    Ok(())
}

pub(super) fn warm(report: &Report) -> Bytes {
    report.plan(Bytes::mib(2), Bytes::mib(768))
}

/// Returns the number of rounds: few for compiling, because its time varies little.
fn rounds(case: &str, report: &Report) -> u64 {
    report.plan(1, if case.starts_with("program_c") { 5 } else { 12 })
}

fn run(
    case: &str,
    make: Make,
    dir: &Path,
    count: u64,
    peers: &[&Peer],
    report: &mut Report,
) -> Outcome {
    let quick = report.options.quick;
    let warm = warm(report);
    let mut first = None;
    for (_, peer) in turns(&format!("malloc, {case}"), count, peers) {
        let ran = match make(dir, quick) {
            Ok(command) => Ran::with(peer, command, None, warm)?,
            Err(why) => {
                report.remark(case, peer.who, CPU, &why.to_string());
                continue;
            }
        };
        ran.add(case, peer.who, report);
        let is_wrong = first.get_or_insert_with(|| ran.said.clone()) != &ran.said;
        report.check("wrong_bytes", u64::from(is_wrong));
    }
    Ok(())
}

pub(super) fn needs(program: &str, package: &str) -> Outcome {
    match Command::new(program).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("not on this machine: apt-get install {package}").into()),
    }
}

/// Returns a `make` command that builds `objects` anew and prints their checksum.
fn make(dir: &Path, objects: &str, flags: &str, rules: &str) -> Outcome<Command> {
    needs("make", "make")?;
    let rest = format!("all: {objects}\n\tcat {objects} | cksum\n{rules}");
    write(dir, "Makefile", &format!("{flags}\n{rest}"))?;
    let mut command = Command::new("make");
    command.args(["--always-make", "--silent", "--jobs=2", "-C"]).arg(dir);
    // Fixes the date, which compiled files may contain, because checksums are compared.
    command.env("SOURCE_DATE_EPOCH", "0");
    Ok(command)
}

fn compile_c(dir: &Path, quick: bool) -> Outcome<Command> {
    let source = option_env!("GLEBE_BENCH_C").filter(|source| Path::new(source).is_dir());
    let source = source.ok_or("the source that this program was built of is gone")?;
    needs("cc", "gcc")?;
    let files = if quick { &C_FILES_QUICK[..] } else { &C_FILES };
    let objects: Vec<_> = files.iter().map(|name| format!("{name}.o")).collect();
    let flags = format!("CFLAGS = -O2 -g -w -DMI_BUILD_RELEASE -I{source}/../include -I{source}");
    let rules = format!("%.o: {source}/%.c\n\t$(CC) $(CFLAGS) -c -o $@ $<\n");
    make(dir, &objects.join(" "), &flags, &rules)
}

fn build_cpp(dir: &Path, quick: bool) -> Outcome<Command> {
    needs("c++", "g++")?;
    write(dir, "templates.cpp", include_str!("templates.cpp"))?;
    let count = if quick { 1 } else { CPP_DEPTHS };
    let objects: Vec<_> = (1..=count).map(|depth| format!("templates-{depth}.o")).collect();
    let flags = if quick { "CXXFLAGS = -std=c++17" } else { "CXXFLAGS = -std=c++17 -O1 -g" };
    let rules = "templates-%.o: templates.cpp\n\t$(CXX) $(CXXFLAGS) -DDEPTH=$* -c -o $@ $<\n";
    make(dir, &objects.join(" "), flags, rules)
}

fn python(dir: &Path, quick: bool, is_by_malloc: bool) -> Outcome<Command> {
    needs("python3", "python3")?;
    // `python3` may be a wrapper, so this asks for the path of the interpreter.
    let asked =
        Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output()?;
    let program = String::from_utf8(asked.stdout)?;
    let text = write(dir, "structures.py", include_str!("structures.py"))?;
    let mut command = Command::new(program.trim());
    command.arg(text).arg(if quick { "1" } else { "8" });
    command.env("PYTHONMALLOC", if is_by_malloc { "malloc" } else { "pymalloc" });
    // Makes hash tables equal in every run, because some random seeds take a third longer.
    command.env("PYTHONHASHSEED", "0");
    Ok(command)
}
