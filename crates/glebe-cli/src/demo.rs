//! `glebe demo` shows a reserve at work on this machine.
//!
//! A thread reads files through the page cache of a reserve and checks every byte of a hit.
//! Meanwhile the demo requests blocks of each size in [`REQUEST_PAGES`] in turn from the reserve,
//! and from the kernel in huge and in small pages. Units: base pages, microseconds.

mod files;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Proof};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::{GranuleUse, Request, Reserve};
use glebe::units::{Bytes, Pages};
use memmap2::{Advice, MmapMut};
use serde_json::{json, Value};

use crate::{size, Outcome};
use files::{FileSet, Reading};

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
    /// A small reserve and few requests: some 10 seconds
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

pub fn run(args: &DemoArgs, out: &mut dyn Write) -> Outcome {
    // Fails before the demo if the file cannot be created.
    let create =
        |path: &PathBuf| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut json = args.json.as_ref().map(create).transpose()?;
    let reserve = reserve(args)?;
    let files = FileSet::below(args.dir.as_deref(), reserve.len().get())?;
    introduce(&reserve, &files, args.verbose, out)?;
    out.flush()?;
    let mut lines: Vec<Line> = REQUEST_PAGES
        .iter()
        .flat_map(|&pages| CONTESTANTS.map(|who| Line { pages, who, ..Line::default() }))
        .collect();
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = reserve.page_cache().namespace("demo")?;
    let (mut stray, mut fullest) = (0, Vec::new());
    let reading = thread::scope(|scope| {
        let reader = scope.spawn(|| files.read_through(&pool, &stop, &seen));
        wait_until(Duration::from_secs(if args.quick { 5 } else { 60 }), || {
            reader.is_finished() || seen.load(Ordering::Relaxed) >= files.pages()
        });
        for _ in 0..if args.quick { 8 } else { 16 } {
            for line in &mut lines {
                stray += line.ask(&reserve, &mut fullest);
                refill(&reserve, line);
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))
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

fn introduce(
    reserve: &Reserve,
    files: &FileSet,
    verbose: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let contig = reserve.contig();
    let len = contig.len();
    writeln!(
        out,
        "Fills up to {len} with cached files, asks for contiguous blocks meanwhile, and"
    )?;
    writeln!(out, "compares with what the kernel needs for as much memory.\n")?;
    let proof = match contig.proof() {
        Proof::Frames => "page frames read".to_owned(),
        Proof::Within(pages) => format!("frames hidden, proved within {pages}"),
    };
    writeln!(out, "reserve   {} of {}", contig.len(), contig.source())?;
    let (runs, longest) = (contig.runs().len(), contig.longest_run().bytes(page_size()));
    writeln!(out, "runs      {runs}, the longest {longest} ({proof})")?;
    if verbose {
        for reason in contig.why_not_better() {
            writeln!(out, "          not better: {reason}")?;
        }
        let why = reserve.why_counted().map(|why| format!(" ({why})")).unwrap_or_default();
        writeln!(out, "writers   {}{why}", reserve.writers())?;
    }
    writeln!(out, "files     {files}")?;
    if reserve.serve_stats().is_ok() {
        writeln!(out, "meanwhile glebe stats --pid {}", std::process::id())?;
    }
    Ok(())
}

#[derive(Default)]
struct Line {
    pages: u64,
    who: &'static str,
    us: Vec<f64>,
    failures: u64,
    note: String,
}

impl Line {
    /// Makes one request. Returns the number of wrong bytes in a block of the reserve. Keeps the
    /// reserve's map in `fullest` if the block is the largest so far.
    fn ask(&mut self, reserve: &Reserve, fullest: &mut Vec<GranuleUse>) -> u64 {
        let asked = match self.who {
            "glebe" => return self.ask_reserve(reserve, fullest),
            who => kernel(Pages::new(self.pages), who == "thp"),
        };
        match asked {
            Ok(took) => self.us.push(took),
            Err(why) => self.failed(why.to_string()),
        }
        0
    }

    fn failed(&mut self, why: String) {
        (self.failures, self.note) = (self.failures + 1, why);
    }

    fn ask_reserve(&mut self, reserve: &Reserve, fullest: &mut Vec<GranuleUse>) -> u64 {
        let Some(request) = self.request(reserve) else { return 0 };
        let start = Instant::now();
        let block = reserve.alloc(request);
        let took = start.elapsed();
        let mut block = match block {
            Ok(block) => block,
            Err(why) => {
                self.failed(why.to_string());
                return 0;
            }
        };
        self.us.push(took.as_secs_f64() * 1e6);
        // This process owns the reserve, so access cannot fail.
        let byte = self.us.len() as u8;
        block.bytes_mut().map(|bytes| bytes.fill(byte)).unwrap_or_default();
        let usage = reserve.usage();
        let weight = |usage: &[GranuleUse]| {
            // The largest block shows most.
            let held = usage.iter().map(|of| of.first_class.get()).sum::<u64>();
            (held, usage.iter().map(|of| of.tenant.get()).sum::<u64>())
        };
        if weight(&usage) > weight(fullest) {
            *fullest = usage;
        }
        match block.bytes() {
            Ok(bytes) => others(bytes, byte),
            Err(_) => block.pages().bytes(page_size()).get(),
        }
    }

    fn request(&mut self, reserve: &Reserve) -> Option<Request> {
        let contig = reserve.contig();
        let (longest, half) = (contig.longest_run().get(), reserve.len().get() / 2);
        let request = Request::new(Pages::new(self.pages));
        if self.pages > half {
            self.note = format!("not asked: more than half the reserve, {half} pages");
            None
        } else if self.pages <= longest {
            Some(request)
        } else if matches!(contig.proof(), Proof::Within(_)) {
            self.note = format!("in addresses only: runs proved up to {longest} pages");
            Some(request.any())
        } else {
            self.note = format!("not asked: the longest run is {longest} pages");
            None
        }
    }
}

/// Counts the bytes that are not `byte`. Compares whole pages first, which is faster.
fn others(bytes: &[u8], byte: u8) -> u64 {
    let page = vec![byte; page_size().bytes().as_usize()];
    let wrong = bytes.chunks(page.len()).filter(|part| **part != page[..part.len()]);
    wrong.flatten().filter(|is| **is != byte).count() as u64
}

/// Returns the microseconds that the kernel takes to populate `pages`.
fn kernel(pages: Pages, huge: bool) -> std::io::Result<f64> {
    let start = Instant::now();
    let memory = MmapMut::map_anon(pages.bytes(page_size()).as_usize())?;
    if huge {
        memory.advise(Advice::HugePage)?;
    }
    memory.advise(Advice::PopulateWrite)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Gives the reader up to 150 ms to refill the pages that the reserve got back.
fn refill(reserve: &Reserve, line: &Line) {
    if line.who == CONTESTANTS[0] {
        let free = || reserve.usage().iter().map(|of| of.free.get()).sum::<u64>();
        wait_until(Duration::from_millis(150), || free() <= reserve.len().get() / 64);
    }
}

fn wait_until(patience: Duration, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() && start.elapsed() < patience {
        thread::sleep(Duration::from_millis(5));
    }
}

fn sorted(us: &[f64]) -> Vec<f64> {
    let mut sorted = us.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the median and the maximum of sorted times.
fn median_and_max(us: &[f64]) -> Option<(f64, f64)> {
    Some((us[us.len().checked_sub(1)? / 2], *us.last()?))
}

fn table(lines: &[Line], out: &mut dyn Write) -> std::io::Result<()> {
    let [glebe, huge, small] = NAMES;
    writeln!(out, "\n{:>9}{glebe:>20}{huge:>23}{small:>24}", "block")?;
    let times = "median / max, us";
    writeln!(out, "{:>9}{times:>20}{times:>23}{times:>24}", "")?;
    for of_size in lines.chunks(CONTESTANTS.len()) {
        let size = of_size.first().map_or(0, |line| line.pages);
        let mut row = format!("{:>9}", Pages::new(size).bytes(page_size()).to_string());
        for (line, width) in of_size.iter().zip([20, 23, 24]) {
            let times = median_and_max(&sorted(&line.us));
            let cell = times.map(|(median, max)| format!("{median:.1} / {max:.1}"));
            row += &format!("{:>width$}", cell.unwrap_or_else(|| "-".to_owned()));
        }
        writeln!(out, "{row}")?;
    }
    for (line, name) in lines.iter().zip(NAMES.iter().cycle()) {
        if line.note.is_empty() {
            continue;
        }
        let failed = match line.failures {
            0 => String::new(),
            count => format!("{count} failed: "),
        };
        let size = Pages::new(line.pages).bytes(page_size());
        writeln!(out, "{size}, {name}: {failed}{}", line.note)?;
    }
    Ok(())
}

/// Says the result for the largest block that the reserve gave.
fn result(lines: &[Line], is_right: bool) -> Option<String> {
    let mut of_size = lines.chunks(CONTESTANTS.len()).rev();
    let [glebe, kernel, ..] = of_size.find(|lines| lines.iter().all(|line| !line.us.is_empty()))?
    else {
        return None;
    };
    let median = |line: &Line| median_and_max(&sorted(&line.us)).map(|(median, _)| median);
    let (glebe_us, kernel_ms) = (median(glebe)?, median(kernel)? / 1e3);
    let size = Pages::new(glebe.pages).bytes(page_size());
    let checks = match is_right {
        true => "No request of glebe failed, no byte was wrong.",
        false => "Some checks failed.",
    };
    // Only a block without a note is proved to be contiguous.
    let piece = if glebe.note.is_empty() { "in one piece" } else { "in addresses" };
    let times = format!("glebe, {piece}, {glebe_us:.0} us; the kernel, in huge pages, ");
    Some(format!("{size}: {times}{kernel_ms:.1} ms (median). {checks}"))
}

fn conclude(
    reserve: &Reserve,
    reading: &Reading,
    checks: &[(&str, u64)],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let stats = reserve.stats();
    let (taken, evicted) = (stats.recalled, stats.evicted);
    writeln!(out, "\npages     {taken} taken back from the cache, {evicted} evicted")?;
    let Reading { hits, hit_s, misses, read_s, .. } = reading;
    let us = |seconds: f64, count: u64| seconds * 1e6 / count.max(1) as f64;
    let (hit, read) = (us(*hit_s, *hits), us(*read_s, *misses));
    writeln!(out, "cache     {hits} hits of {hit:.2} us, {misses} misses of {read:.2} us to read")?;
    writeln!(out, "The kernel's memory is populated, zeroed, and contiguous within a page only;")?;
    writeln!(out, "the reserve's blocks are not zeroed.\n\nchecks (must be 0)")?;
    for (name, count) in checks {
        writeln!(out, "  {name:38} {count}{}", if *count == 0 { "" } else { "  WRONG" })?;
    }
    Ok(())
}

/// Returns the report in the benchmarks' format.
fn report(
    quick: bool,
    reserve: &Reserve,
    files: &FileSet,
    lines: &[Line],
    fullest: &[GranuleUse],
) -> Value {
    let row = |line: &Line| {
        let us = sorted(&line.us);
        let (first, last) = (us.first()?, us.last()?);
        let (median, runs) = (us[(us.len() - 1) / 2], us.len());
        Some(json!({
            "case": format!("recall_{}", line.pages), "who": line.who, "unit": "us",
            "median": median, "max": last, "min": first, "runs": runs,
        }))
    };
    let granule = |of: &GranuleUse| json!([of.free.get(), of.first_class.get(), of.tenant.get()]);
    json!({
        "bench": "demo",
        "version": 1,
        "quick": quick,
        "len_bytes": reserve.len().bytes(page_size()).get(),
        "page_bytes": page_size().bytes().get(),
        "files": files.to_string(),
        "rows": lines.iter().filter_map(row).collect::<Vec<_>>(),
        "map": fullest.iter().map(granule).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_other_than_the_pattern_are_counted() {
        let mut bytes = vec![7; 2 * page_size().bytes().as_usize() + 3];
        assert_eq!(others(&bytes, 7), 0);
        let last = bytes.len() - 1;
        (bytes[1], bytes[last]) = (8, 0);
        assert_eq!(others(&bytes, 7), 2);
        assert_eq!(others(&bytes, 8), bytes.len() as u64 - 1);
    }
}
