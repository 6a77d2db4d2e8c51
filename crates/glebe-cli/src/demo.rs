//! `glebe demo` shows a reserve at work on this machine.
//!
//! A thread reads files through the page cache of a reserve and checks every byte of a hit.
//! Meanwhile the demo requests blocks of each size in [`REQUEST_PAGES`] in turn from the reserve,
//! and from the kernel in huge and in small pages. Units: base pages, microseconds.

mod files;
mod line;
mod shown;
mod step;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Proof};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};

use crate::{size, Outcome};
use files::{FileSet, Reading};
use line::Line;
use shown::{conclude, report, result, table};
use step::Step;

const REQUEST_PAGES: [u64; 8] = [1, 512, 1024, 2048, 4096, 8192, 16384, 32000];
const CONTESTANTS: [&str; 3] = ["glebe", "thp", "plain"];
/// Names of the contestants in the text.
const NAMES: [&str; 3] = ["glebe", "huge pages on demand", "small pages on demand"];
const LEN_MIN: Bytes = Bytes::mib(64);
const GRANULE: Bytes = Bytes::mib(2);

/// Options of `glebe demo`.
#[derive(clap::Args)]
pub struct DemoArgs {
    /// Directory of files to read through the cache
    dir: Option<PathBuf>,
    /// A small reserve and short pauses: some 10 seconds
    #[arg(long)]
    quick: bool,
    /// Write the figures here, as the benchmarks do: scripts/plot.py draws them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Bytes of the reserve, with K, M or G for powers of 1024
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    size: Option<Bytes>,
    /// Also say why no better kind of memory was used, and how writers of the cache are kept out
    #[arg(long, short)]
    verbose: bool,
}

/// The longest time to fill the cache, the number of requests for each size, and the longest time
/// to fill what a block gave back.
struct Pace {
    fill: Duration,
    rounds: u32,
    refill: Duration,
}

impl Pace {
    fn of(args: &DemoArgs) -> Self {
        let [fill, refill] = if args.quick { [5_000, 50] } else { [15_000, 100] };
        Self { fill: Duration::from_millis(fill), rounds: 8, refill: Duration::from_millis(refill) }
    }

    /// Returns about how many seconds the requests take: most of it is refilling, and the kernel
    /// takes some tenths of a second for each size once.
    fn seconds_of_requests(&self) -> f64 {
        let refills = self.refill.as_secs_f64() * REQUEST_PAGES.len() as f64;
        f64::from(self.rounds) * (refills + 0.4)
    }
}

const INTRODUCTION: &str = "\
A program sets memory aside once. While the program does not need it, a cache of files uses it.
Now and then the program asks for a block of this memory: one physical piece. glebe then takes
pages back from the cache. The demo measures how long the program waits for a block, and how long
it waits for as much memory from the kernel.
";

pub fn run(args: &DemoArgs, out: &mut dyn Write) -> Outcome {
    // Fails before the demo if the file cannot be created.
    let create =
        |path: &PathBuf| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut json = args.json.as_ref().map(create).transpose()?;
    let pace = Pace::of(args);
    writeln!(out, "{INTRODUCTION}")?;
    let step = Step::begin(out, "1 of 3  sets memory aside, for some seconds at most:")?;
    let reserve = reserve(args)?;
    step.end()?;
    let files = FileSet::below(args.dir.as_deref(), reserve.len().get())?;
    introduce(&reserve, args.verbose, out)?;
    let mut lines: Vec<Line> = REQUEST_PAGES
        .iter()
        .flat_map(|&pages| CONTESTANTS.map(|who| Line { pages, who, ..Line::default() }))
        .collect();
    let (mut stray, mut fullest) = (0, Vec::new());
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = reserve.page_cache().namespace("demo")?;
    let reading = thread::scope(|scope| -> Result<Reading, Box<dyn std::error::Error>> {
        // Ends the reader also where an output fails.
        let _stop = Stop(&stop);
        let reader = scope.spawn(|| files.read_through(&pool, &stop, &seen));
        let title = format!("2 of 3  reads {files} through the cache, {}", at_most(pace.fill));
        let mut step = Step::begin(out, &title)?;
        wait_until(pace.fill, || {
            let share = seen.load(Ordering::Relaxed) * 4 / files.pages().max(1);
            step.reached(share.min(4), |quarter| format!("{} %", 25 * quarter));
            reader.is_finished() || share >= 4
        });
        step.end()?;
        let seconds = pace.seconds_of_requests();
        let title = format!("3 of 3  asks for blocks of 8 sizes, some {seconds:.0} s; round");
        let mut step = Step::begin(out, &title)?;
        for round in 1..=u64::from(pace.rounds) {
            step.reached(round, |round| round.to_string());
            for line in &mut lines {
                stray += line.ask(&reserve, &mut fullest);
                refill(&reserve, line, pace.refill);
            }
        }
        step.end()?;
        stop.store(true, Ordering::Relaxed);
        Ok(reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))?)
    })?;
    let failed = lines.iter().filter(|line| line.who == CONTESTANTS[0]).map(|l| l.failures).sum();
    table(&lines, out)?;
    let checks = [
        ("requests of the reserve that failed", failed),
        ("bytes changed in held blocks", stray),
        ("hits with wrong bytes", reading.wrong),
        ("statistics that do not add up", u64::from(reserve.stats().check().is_err())),
    ];
    conclude(&reserve, &reading, &checks, out)?;
    let is_right = checks.iter().all(|(_, count)| *count == 0);
    if let Some(result) = result(&lines, is_right) {
        writeln!(out, "\n{result}")?;
    }
    if let Some(file) = &mut json {
        let report = report(args.quick, &reserve, &files, &lines, &fullest);
        serde_json::to_writer(&mut *file, &report)?;
        writeln!(file)?;
    }
    match is_right {
        true => Ok(()),
        false => Err("the demo failed: see the checks".into()),
    }
}

/// Sets the flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn at_most(patience: Duration) -> String {
    format!("at most {} s:", patience.as_secs())
}

/// Makes the reserve. Halves its size after a failure, down to [`LEN_MIN`], unless the user gave a
/// size.
fn reserve(args: &DemoArgs) -> Result<Reserve, Box<dyn std::error::Error>> {
    let most = if args.quick { Bytes::mib(256) } else { Bytes::gib(1) };
    let fitting = most.min(Bytes::new(meminfo::available()?.get() / 4)).max(LEN_MIN);
    let mut len = args.size.unwrap_or(fitting);
    loop {
        let whole = Bytes::new(len.get().next_multiple_of(GRANULE.get()));
        let run = Pages::new(REQUEST_PAGES[REQUEST_PAGES.len() - 1]).bytes(page_size());
        let run = run.min(Bytes::new(whole.get() / 2));
        match Contig::options().prefer_run(run).build(whole) {
            Ok(contig) => return Ok(Reserve::options().build_on(contig)?),
            Err(_) if args.size.is_none() && len > LEN_MIN => {
                len = Bytes::new(len.get() / 2).max(LEN_MIN);
            }
            Err(why) => return Err(format!("a reserve of {whole}: {why}").into()),
        }
    }
}

fn introduce(reserve: &Reserve, verbose: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let contig = reserve.contig();
    let proof = match contig.proof() {
        Proof::Frames => "page frames read".to_owned(),
        Proof::Within(pages) => format!("frames hidden, proved within {pages}"),
    };
    writeln!(out, "        reserve   {} of {}", contig.len(), contig.source())?;
    let (runs, longest) = (contig.runs().len(), contig.longest_run().bytes(page_size()));
    writeln!(out, "        pieces    {runs}, the longest {longest} ({proof})")?;
    if verbose {
        for reason in contig.why_not_better() {
            writeln!(out, "        not better: {reason}")?;
        }
        let why = reserve.why_counted().map(|why| format!(" ({why})")).unwrap_or_default();
        writeln!(out, "        writers   {}{why}", reserve.writers())?;
    }
    if reserve.serve_stats().is_ok() {
        let pid = std::process::id();
        writeln!(out, "        meanwhile, in another terminal: glebe stats --pid {pid}")?;
    }
    Ok(())
}

/// Gives the reader time to refill the pages that the reserve got back.
fn refill(reserve: &Reserve, line: &Line, patience: Duration) {
    if line.who == CONTESTANTS[0] {
        let free = || reserve.usage().iter().map(|of| of.free.get()).sum::<u64>();
        wait_until(patience, || free() <= reserve.len().get() / 64);
    }
}

fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() && start.elapsed() < patience {
        thread::sleep(Duration::from_millis(5));
    }
}
