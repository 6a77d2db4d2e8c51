//! `glebe bench`: one benchmark by name, as a table and as JSON.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::value_parser;
use glebe::units::Bytes;
use glebe_bench::contig;
use glebe_bench::gpu;
use glebe_bench::interrupt;
use glebe_bench::report::Report;
use glebe_bench::reserve::measure::{self, Options};
use glebe_bench::vmap::{self, kernel_test};
use glebe_bench::volatile;
use glebe_bench::zpool;

use crate::{size, usage, Outcome};

/// Name and one line on each benchmark.
const BENCHES: [(&str, &str); 6] = [
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
    (
        contig::measure::NAME,
        "what contiguous memory buys and costs: reads, copies, direct I/O, populating, long runs",
    ),
    (gpu::measure::NAME, "copies between an NVIDIA GPU and registered memory; registering it"),
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
    /// Where scratch files go, those of the background command too; zpool: where a kernel source
    /// tree is looked for first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Zpool: store the files of this directory, or of a tarball of sources, whatever is there
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Contig, gpu: the largest memory to work on
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    largest: Option<Bytes>,
    /// Reserve: a shell command that ends, as background load instead of a build
    #[arg(long, value_name = "CMD")]
    background: Option<String>,
    #[command(flatten)]
    vmap: VmapArgs,
}

/// Options of the benchmark of free extents.
#[derive(clap::Args)]
struct VmapArgs {
    /// Vmap: run the kernel test's own cases over one shared space instead, as its script does
    #[arg(long, value_enum, conflicts_with = "quick")]
    mode: Option<Mode>,
    /// With --mode: workers
    #[arg(long, value_name = "N", requires = "mode", value_parser = value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// With --mode: runs of each case
    #[arg(long, value_name = "N", requires = "mode", value_parser = value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// With --mode: allocations in a run
    #[arg(long, value_name = "N", requires = "mode", value_parser = value_parser!(u32).range(1..))]
    loops: Option<u32>,
    /// With --mode: each worker in an order of its own
    #[arg(long, requires = "mode")]
    shuffle: bool,
    /// With --mode: a sharded tree for all workers, instead of an exact one behind a lock
    #[arg(long, requires = "mode")]
    sharded: bool,
    /// With --mode: the cases, by the bits of the kernel's run_test_mask
    #[arg(long, value_name = "BITS", requires = "mode", default_value_t = kernel_test::MASK_ALL)]
    mask: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
    /// One worker, in order, three runs of each case
    Performance,
    /// Ten short runs of each case
    Smoke,
    /// A worker for each processor, twenty runs of each case
    Stress,
}

impl From<Mode> for kernel_test::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Performance => Self::Performance,
            Mode::Smoke => Self::Smoke,
            Mode::Stress => Self::Stress,
        }
    }
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
        return usage(format!("no benchmark {name}; --list names those there are"));
    }
    let dir = args.dir.as_deref().map(scratch_dir).transpose()?;
    let words: Vec<String> = env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
    let (quick, command) = (args.quick, words.join(" "));
    if name != measure::NAME && args.background.is_some() {
        return usage("--background is for the benchmark of the reserve");
    }
    if name != vmap::measure::NAME && args.vmap.mode.is_some() {
        return usage("--mode is for the benchmark vmap");
    }
    let sized = [contig::measure::NAME, gpu::measure::NAME].contains(&name);
    if !sized && args.largest.is_some() {
        return usage("--largest is for the benchmarks of contiguous memory and of a GPU");
    }
    if name != zpool::measure::NAME && args.tree.is_some() {
        return usage("--tree is for the benchmark zpool");
    }
    let has_files = ![vmap::measure::NAME, gpu::measure::NAME].contains(&name);
    if !has_files && dir.is_some() {
        return usage("this benchmark has no files");
    }
    interrupt::install()?;
    let report = match name {
        gpu::measure::NAME => {
            let largest = args.largest;
            gpu::measure::run(&gpu::measure::Options { quick, largest, command })
        }
        contig::measure::NAME => {
            let largest = args.largest;
            contig::measure::run(&contig::measure::Options { quick, largest, dir, command })?
        }
        vmap::measure::NAME => free_extents(&args.vmap, quick, command),
        volatile::measure::NAME => {
            volatile::measure::run(&volatile::measure::Options { quick, dir, command })?
        }
        zpool::measure::NAME => {
            let tree = args.tree.clone();
            zpool::measure::run(&zpool::measure::Options { quick, dir, tree, command })?
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

fn free_extents(args: &VmapArgs, quick: bool, command: String) -> Report {
    let Some(mode) = args.mode else {
        return vmap::measure::run(&vmap::measure::Options { quick, command });
    };
    kernel_test::run(&kernel_test::Options {
        mode: mode.into(),
        threads: args.threads.map(usize::from),
        repeat: args.repeat,
        loops: args.loops,
        shuffle: args.shuffle,
        sharded: args.sharded,
        mask: args.mask,
        command,
    })
}

fn reserve(args: &Args, dir: Option<PathBuf>, command: String) -> Result<Report, Box<dyn Error>> {
    let (quick, background) = (args.quick, args.background.clone());
    Ok(measure::run(&Options { quick, background, dir, command })?)
}

/// The directory as an absolute path, if it is one that can be written to.
fn scratch_dir(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let refused = |why: &dyn Display| format!("scratch files in {}: {why}", dir.display());
    let absolute = dir.canonicalize().map_err(|e| refused(&e))?;
    let name = absolute.join(format!(".glebe-bench-{}", std::process::id()));
    fs::create_dir(&name).and_then(|()| fs::remove_dir(&name)).map_err(|e| refused(&e))?;
    Ok(absolute)
}
