//! Programs of a public suite of allocator benchmarks, daanx/mimalloc-bench, that a C or C++
//! compiler builds without downloads.
//!
//! The variable [`CHECKOUT`] names a work tree or git directory of the suite. Programs get less
//! work than in the suite. Programs that run for a fixed time print how much they did; their unit
//! is CPU time per operation. Source: the suite's CMakeLists.txt and bench.sh.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::is_wanted;
use super::peer::{Peer, Peers, MIMALLOC};
use super::programs::{needs, warm};
use super::ran::{Ran, CPU, PEAK, WALL};
use crate::report::{Report, GLEBE};
use crate::turns::turns;
use crate::Outcome;

const CHECKOUT: &str = "MIMALLOC_BENCH";
const HOW: &str = "MIMALLOC_BENCH names no checkout of github.com/daanx/mimalloc-bench";
const PER_OP: &str = "us cpu/op";
const THREADS: &str = "2";

/// The word after the figure that a program prints, and operations per unit of that figure.
type Did = Option<(&'static str, f64)>;

struct Program {
    name: &'static str,
    /// Folder below `bench`. Its files that end in `suffix`, except `without`, are compiled.
    folder: &'static str,
    suffix: &'static str,
    without: &'static [&'static str],
    flags: &'static [&'static str],
    /// Arguments; `@` is the folder `bench`.
    args: &'static [&'static str],
    input: Option<&'static str>,
    did: Did,
    /// Factor of the rounds, above 1 if time or peak varies much or depends on where threads run.
    rounds: u64,
}

const C: Program = Program {
    name: "",
    folder: "",
    suffix: ".c",
    without: &[],
    flags: &[],
    args: &[],
    input: None,
    did: None,
    rounds: 1,
};
const CPP: Program = Program { suffix: ".cpp", ..C };
/// C before 1999.
const OLD: &[&str] = &["-std=gnu89"];
const LARSON: Program = Program {
    folder: "larson",
    args: &["1", "8", "1000", "5000", "100", "4141", THREADS],
    did: Some((" operations per second", 1.0)),
    rounds: 3,
    ..CPP
};

#[rustfmt::skip] // one program per line
const PROGRAMS: [Program; 17] = [
    Program { name: "cfrac", folder: "cfrac", flags: &["-std=gnu89", "-DNOMEMOPT=1"],
        without: &["getopt.c", "ltop.c", "pfactor.c", "ptob.c"],
        args: &["17545186520507317056371138836327483792736"], ..C },
    Program { name: "espresso", folder: "espresso", flags: OLD,
        args: &["@/espresso/largest.espresso"], ..C },
    Program { name: "barnes", folder: "barnes", flags: OLD, input: Some("barnes/input"), ..C },
    Program { name: "larson", flags: &["-DCPP=1"], ..LARSON },
    Program { name: "larson_sized", flags: &["-DCPP=1", "-DSIZED=1", "-fsized-deallocation"],
        ..LARSON },
    Program { name: "mstress", folder: "mstress", args: &[THREADS, "50", "250"],
        rounds: 4, ..C },
    Program { name: "rptest", folder: "rptest", flags: &["-fpermissive"],
        args: &[THREADS, "0", "1", "2", "100", "1000", "100", "8", "16000"],
        rounds: 2, ..C },
    Program { name: "alloc_test_1", folder: "alloc-test", flags: &["-DBENCH=4"], args: &["1"],
        ..CPP },
    Program { name: "xmalloc_test", folder: "xmalloc-test",
        args: &["-w", THREADS, "-t", "2", "-s", "64"], did: Some((" M", 2e6)), rounds: 4, ..C },
    Program { name: "cache_scratch_1", folder: "cache-scratch",
        args: &["1", "1000", "1", "2000000", THREADS], ..CPP },
    Program { name: "cache_scratch", folder: "cache-scratch",
        args: &[THREADS, "1000", "1", "2000000", THREADS], ..CPP },
    Program { name: "cache_thrash", folder: "cache-thrash",
        args: &[THREADS, "1000", "1", "2000000", THREADS], ..CPP },
    Program { name: "glibc_simple", folder: "glibc-bench", without: &["bench-malloc-thread.c"],
        ..C },
    Program { name: "glibc_thread", folder: "glibc-bench", without: &["bench-malloc-simple.c"],
        args: &[THREADS], did: Some((" iterations", 1.0)), ..C },
    Program { name: "malloc_large", folder: "malloc-large", without: &["malloc-large-old.cpp"],
        ..CPP },
    Program { name: "mleak_10", folder: "mleak", args: &["5"], ..C },
    Program { name: "mleak_100", folder: "mleak", args: &["50"], ..C },
];
const FEW: [&str; 3] = ["mstress", "xmalloc_test", "glibc_thread"];

pub(super) fn cases() -> impl Iterator<Item = (String, &'static str)> {
    PROGRAMS.iter().map(|program| (program.case(), program.unit()))
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let scratch = report.options.scratch();
    let dir = tempfile::Builder::new().prefix("glebe-bench-").tempdir_in(scratch)?;
    let sources = match sources(env::var_os(CHECKOUT), dir.path()) {
        Ok(sources) => sources,
        Err(why) => {
            cases().for_each(|(case, unit)| report.remark(&case, GLEBE, unit, &why.to_string()));
            return Ok(());
        }
    };
    let both: Vec<&Peer> = [GLEBE, MIMALLOC].iter().filter_map(|who| peers.get(who)).collect();
    let count = report.plan(1, 5);
    for program in &PROGRAMS {
        let is_left_out = report.options.quick && !FEW.contains(&program.name);
        if is_left_out || !is_wanted(&program.case(), "suite", report) {
            continue;
        }
        match program.built(&sources, dir.path()) {
            Ok(path) => program.measure(&path, &sources, &both, count, report)?,
            Err(why) => report.remark(&program.case(), GLEBE, program.unit(), &why.to_string()),
        }
        peers.name_absent(&program.case(), program.unit(), report);
    }
    report.note(
        "suite_X: programs of daanx/mimalloc-bench, with less work each. Left out: sh6bench and \
         sh8bench, whose source is fetched apart, and what needs Redis, Lua, Lean, Ghostscript, \
         RocksDB, Ruby, Z3 or SPEC. larson, xmalloc_test and glibc_thread run for a fixed time: \
         CPU time for each operation.",
    );
    Ok(())
}

/// Returns the folder `bench` of a checkout. Extracts it to `scratch` if the checkout is a git
/// directory.
fn sources(checkout: Option<OsString>, scratch: &Path) -> Outcome<PathBuf> {
    let checkout = PathBuf::from(checkout.ok_or(HOW)?);
    if checkout.join("bench").is_dir() {
        return Ok(checkout.join("bench").canonicalize()?);
    }
    let tar = scratch.join("suite.tar");
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(&checkout).args(["archive", "-o"]).arg(&tar).args(["HEAD", "bench"]);
    let is_had = git.output().is_ok_and(|output| output.status.success());
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&tar).arg("-C").arg(scratch);
    match is_had && unpack.status().is_ok_and(|status| status.success()) {
        true => Ok(scratch.join("bench")),
        false => Err(format!("{HOW}: {}", checkout.display()).into()),
    }
}

impl Program {
    fn case(&self) -> String {
        format!("suite_{}", self.name)
    }

    fn unit(&self) -> &'static str {
        if self.did.is_some() {
            PER_OP
        } else {
            CPU
        }
    }

    fn built(&self, sources: &Path, dir: &Path) -> Outcome<PathBuf> {
        let compiler = if self.suffix == ".c" { "cc" } else { "c++" };
        needs(compiler, "g++")?;
        let folder = sources.join(self.folder);
        let mut files = Vec::new();
        for entry in folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(self.suffix) && !self.without.contains(&&*name) {
                files.push(folder.join(name));
            }
        }
        files.sort();
        let path = dir.join(self.name);
        let mut command = Command::new(compiler);
        command.args(["-O3", "-DNDEBUG", "-w", "-pthread", "-I"]).arg(&folder);
        command.args(self.flags).args(&files);
        let output = command.arg("-o").arg(&path).arg("-lm").output()?;
        match output.status.success() {
            true => Ok(path),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                let line = said.lines().find(|line| line.contains("error")).unwrap_or("");
                Err(format!("{compiler} failed: {line}").into())
            }
        }
    }

    fn measure(
        &self,
        path: &Path,
        sources: &Path,
        peers: &[&Peer],
        count: u64,
        report: &mut Report,
    ) -> Outcome {
        let case = self.case();
        let warm = warm(report);
        let bench = sources.to_string_lossy();
        for (_, peer) in turns(&format!("malloc, {case}"), count * self.rounds, peers) {
            let mut command = Command::new(path);
            command.args(self.args.iter().map(|arg| arg.replace('@', &bench)));
            command.current_dir(path.parent().unwrap_or(path));
            let input = self.input.map(|name| sources.join(name));
            let ran = Ran::with(peer, command, input.as_deref(), warm)?;
            match self.did {
                None => ran.add(&case, peer.who, report),
                Some((word, operations)) => {
                    let figure = figure_before(word, &ran.said);
                    let did = figure.ok_or("it does not say what it did")? * operations;
                    report.add(&case, peer.who, PER_OP, ran.cpu_s / did * 1e6);
                    report.add(&case, peer.who, WALL, ran.wall_s);
                    report.add(&case, peer.who, PEAK, ran.peak as f64 / f64::from(1 << 20));
                }
            }
        }
        Ok(())
    }
}

fn figure_before(word: &str, said: &str) -> Option<f64> {
    let before = &said[..said.find(word)?];
    let digits = before.rfind(|c: char| !c.is_ascii_digit() && c != '.').map_or(0, |at| at + 1);
    before[digits..].parse().ok().filter(|figure| *figure > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_a_checkout_is_built_and_run_and_one_that_is_not_there_says_why() {
        if let Err(why) = needs("cc", "gcc") {
            return println!("skipped: a program of the suite ({why})");
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("bench/tiny");
        std::fs::create_dir_all(&folder).unwrap();
        let text = "#include <stdio.h>\nint main(int n, char **all) \
                    { printf(\"%s did 250 iterations\\n\", all[n - 1]); return 0; }";
        std::fs::write(folder.join("tiny.c"), text).unwrap();
        std::fs::write(folder.join("other.c"), "not C").unwrap();
        let sources = sources(Some(dir.path().into()), dir.path()).unwrap();
        let program = Program {
            name: "tiny",
            folder: "tiny",
            without: &["other.c"],
            args: &["@/input"],
            did: Some((" iterations", 1.0)),
            ..C
        };
        let path = program.built(&sources, dir.path()).unwrap();
        let output = Command::new(path).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("did 250 iterations"));
        let broken = Program { without: &[], ..program };
        assert!(broken.built(&sources, dir.path()).unwrap_err().to_string().contains("cc failed"));
    }

    #[test]
    fn a_checkout_that_is_none_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for checkout in [None, Some(dir.path().into())] {
            let why = sources(checkout, dir.path()).unwrap_err().to_string();
            assert!(why.contains(CHECKOUT), "{why}");
        }
    }

    #[test]
    fn what_a_program_did_is_read() {
        let larson = "Throughput =  8242341 operations per second, relative time: 0.121s.\nDone";
        assert_eq!(figure_before(" operations per second", larson), Some(8_242_341.0));
        assert_eq!(figure_before(" M", "rtime: 7.304, free/sec: 13.691 M\n"), Some(13.691));
        assert_eq!(figure_before(" iterations", "20403008 iterations\n"), Some(20_403_008.0));
        assert_eq!(figure_before(" iterations", "none iterations"), None);
    }
}
