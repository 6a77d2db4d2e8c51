//! `glebe bench`: one benchmark by name, as a table and as JSON.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use glebe_bench::interrupt;
use glebe_bench::report::Report;
use glebe_bench::reserve::age;
use glebe_bench::reserve::measure::{self, Options};
use glebe_bench::vmap;
use glebe_bench::volatile;
use glebe_bench::whole_file;
use glebe_bench::zpool;

use crate::Outcome;

/// Name and one line on each benchmark.
const BENCHES: [(&str, &str); 4] = [
    (measure::NAME, "blocks under load, what the load pays, pages in and out, growth; aging"),
    (
        volatile::measure::NAME,
        "mark and unmark beside giving memory back; purging, a cache and a stress under pressure \
         (five to eight minutes)",
    ),
    (
        zpool::measure::NAME,
        "what a pool holds of a source tree, beside zram and allocators; store, load, compact",
    ),
    (vmap::measure::NAME, "the cases of the kernel's vmalloc test over positions: trees and lists"),
];

/// Options of `glebe bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Which benchmark; that of volatile memory takes five to eight minutes
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// Few samples: too few to compare
    #[arg(long)]
    quick: bool,
    /// Write the JSON here too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Reserve: compare placements over hours of service, compressed, instead
    #[arg(long, conflicts_with_all = ["background", "dir"])]
    age: bool,
    /// With --age: the first seed
    #[arg(long, value_name = "N", default_value_t = 1, requires = "age")]
    seed: u64,
    /// With --age: draw runs, failures and recalls over time here
    #[arg(long, value_name = "FILE", requires = "age")]
    svg: Option<PathBuf>,
    /// Where scratch files go, those of the background command too; zpool: where a kernel source
    /// tree is looked for first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Reserve: a shell command that ends, as background load instead of a build
    #[arg(long, value_name = "CMD")]
    background: Option<String>,
}

/// Runs a benchmark or lists them; an error if a check did not hold.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        for (name, what) in BENCHES {
            writeln!(out, "{name}  {what}")?;
        }
        return Ok(());
    };
    if !BENCHES.iter().any(|(known, _)| *known == name) {
        return Err(format!("no benchmark {name:?}; --list names those there are").into());
    }
    let dir = args.dir.as_deref().map(scratch_dir).transpose()?;
    let words: Vec<String> = env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
    let (quick, command) = (args.quick, words.join(" "));
    if name != measure::NAME && (args.age || args.background.is_some()) {
        return Err("--age and --background are for the benchmark of the reserve".into());
    }
    interrupt::install()?;
    let report = match name {
        vmap::measure::NAME if dir.is_some() => return Err("this benchmark has no files".into()),
        vmap::measure::NAME => vmap::measure::run(&vmap::measure::Options { quick, command }),
        volatile::measure::NAME => {
            volatile::measure::run(&volatile::measure::Options { quick, dir, command })?
        }
        zpool::measure::NAME => {
            zpool::measure::run(&zpool::measure::Options { quick, dir, command })?
        }
        _ => reserve(args, dir, command)?,
    };
    write!(out, "{}", report.text())?;
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    match report.passed() {
        true => Ok(()),
        false => Err("a check did not hold".into()),
    }
}

fn reserve(args: &Args, dir: Option<PathBuf>, command: String) -> Result<Report, Box<dyn Error>> {
    let quick = args.quick;
    if !args.age {
        let background = args.background.clone();
        return Ok(measure::run(&Options { quick, background, dir, command })?);
    }
    let aged = age::run(&age::Options { quick, seed: args.seed, command })?;
    if let Some(path) = &args.svg {
        whole_file::write(path, aged.svg.as_bytes())?;
    }
    Ok(aged.report)
}

/// The directory as an absolute path, if it is one that can be written to.
fn scratch_dir(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let refused = |why: &dyn Display| format!("scratch files in {}: {why}", dir.display());
    let absolute = dir.canonicalize().map_err(|e| refused(&e))?;
    let name = absolute.join(format!(".glebe-bench-{}", std::process::id()));
    fs::create_dir(&name).and_then(|()| fs::remove_dir(&name)).map_err(|e| refused(&e))?;
    Ok(absolute)
}
