//! *CMA as a stock kernel can have it*: requests served by evacuating memory blocks that are full
//! of page cache and of a busy program's memory, beside the reserve's recall and huge pages on
//! demand.
//!
//! The page cache is filled with a file of holes until little is free, beside a program that writes
//! at random to memory of its own; after each evacuation it is filled again, so that the next finds
//! full blocks. Contestants take turns. After each request the busy program says how long it was
//! kept waiting at worst, and whether a word was not as written. Units: base pages, microseconds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::error::OsError;
use glebe::reserve::{Request, Reserve};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Marking};
use super::samples::{Samples, GLEBE};
use super::tenant::Tenant;
use super::{Error, REQUEST_PAGES};
use crate::clock::Stopwatch;
use crate::contig::fragment::Busy;
use crate::interrupt;
use crate::peers::{self, longest_run, Peer, PeerSample};
use crate::progress::Progress;
use crate::report::Report;

const CASE: &str = "evacuate";
const BLOCKS: &str = "blocks";
const STALL: &str = "busy_stall";
const RATIO: &str = "max_32000_vs_evacuation";
const ROUNDS: u64 = 8;
const LARGEST: u64 = REQUEST_PAGES[REQUEST_PAGES.len() - 1];
const BUSY: Bytes = Bytes::gib(4);
/// Free memory at which the page cache counts as full.
const SCARCE: Bytes = Bytes::mib(400);
/// So that what is read is never there yet: the file, in memories of the machine.
const MEMORIES: u64 = 3;
const CHUNK: Bytes = Bytes::mib(1);

/// A file of holes, read until memory is full of it.
struct CacheFile {
    path: PathBuf,
    file: File,
    len: Bytes,
    /// A multiple of [`CHUNK`].
    at: u64,
}

impl CacheFile {
    fn new(dir: &Path) -> Result<Self, OsError> {
        let path = dir.join(format!("glebe-evacuation-{}", std::process::id()));
        let failed = |e| OsError::new("create", path.display().to_string(), e);
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.map_err(failed)?;
        let len = meminfo::available()?.get() * MEMORIES;
        let len = Bytes::new(len.next_multiple_of(CHUNK.get()));
        let cache = Self { path: path.clone(), file, len, at: 0 };
        cache.file.set_len(cache.len.get()).map_err(failed)?;
        Ok(cache)
    }

    /// Reads on until little memory is free, as much as was free at most.
    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK.as_usize()];
        // The kernel frees more as this is read: what was free is enough.
        for _ in 0..free()?.get() / CHUNK.get() {
            interrupt::check();
            if free()? < SCARCE {
                break;
            }
            self.file.read_at(&mut buffer, self.at)?;
            self.at = (self.at + CHUNK.get()) % self.len.get();
        }
        Ok(())
    }
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn free() -> io::Result<Bytes> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemFree:")?.split(' ').rev().nth(1));
    let kib: Option<u64> = kib.and_then(|kib| kib.parse().ok());
    Ok(Bytes::new(kib.unwrap_or(0) << 10))
}

/// Measures and reports; `reserve` is full of pages of `tenant`. A quick run leaves the machine's
/// memory alone.
pub(super) fn measure(
    reserve: &Reserve,
    tenant: &mut Tenant,
    dir: &Path,
    quick: bool,
    report: &mut Report,
) -> Result<(), Error> {
    report.ratio(RATIO, f64::NAN); // there in any case
    let case = format!("{CASE}_{LARGEST}");
    if quick {
        report.absent(&case, BLOCKS, "us", "not in a quick run: blocks of the machine go off line");
        return Ok(());
    }
    // Before memory is filled: without the privilege or the means that is for nothing.
    if let Err(why) = Contig::options().source(Source::Blocks).map(Bytes::mib(2)) {
        report.absent(&case, BLOCKS, "us", &why.to_string());
        return Ok(());
    }
    let mut busy = Busy::start(BUSY.min(Bytes::new(meminfo::available()?.get() / 4)))?;
    let mut cache = CacheFile::new(dir)?;
    let failed = |e| OsError::new("read", cache_name(dir), e);
    cache.fill().map_err(failed)?;
    report.note(&format!(
        "`{CASE}`: blocks full of page cache and of a program that writes to {} at random; what is \
         timed of `{BLOCKS}` includes zeroing.",
        busy.held
    ));
    let mut samples = Samples::default();
    let mut stalls: [Vec<f64>; 3] = Default::default();
    let longest = reserve.contig().longest_run().get();
    let mut progress = Progress::new(CASE, ROUNDS * REQUEST_PAGES.len() as u64);
    for round in 0..ROUNDS {
        for (nth, pages) in (0..).zip(REQUEST_PAGES) {
            for (who, stalls) in
                [GLEBE, BLOCKS, Peer::SurplusHugetlb.name()].into_iter().zip(&mut stalls)
            {
                busy.told()?;
                match who {
                    GLEBE if pages > longest => {}
                    GLEBE => recalled(reserve, tenant, pages, &mut samples),
                    BLOCKS => samples.peer(CASE, pages, who, evacuated(pages)),
                    _ => {
                        let sample = peers::measure(Peer::SurplusHugetlb, Pages::new(pages));
                        samples.peer(CASE, pages, who, sample);
                    }
                }
                let told = busy.told()?;
                report.check("wrong_bytes", told.wrong * size_of::<u64>() as u64);
                if pages == LARGEST {
                    stalls.push(told.worst_us);
                }
                cache.fill().map_err(failed)?;
            }
            progress.update(round * REQUEST_PAGES.len() as u64 + nth + 1);
        }
    }
    progress.finish();
    for (who, stalls) in [GLEBE, BLOCKS, Peer::SurplusHugetlb.name()].into_iter().zip(&stalls) {
        for pages in REQUEST_PAGES {
            samples.report(CASE, pages, who, report);
        }
        report.row(&format!("{STALL}_{LARGEST}"), who, "us", stalls);
        report.remark("the longest that 64 writes of a busy program took beside each request");
    }
    let max = |who| samples.wall(CASE, LARGEST, who).map_or(f64::NAN, |summary| summary.max);
    report.ratio(RATIO, max(BLOCKS) / max(GLEBE));
    Ok(())
}

fn cache_name(dir: &Path) -> String {
    format!("a file in {}", dir.display())
}

/// A block of the reserve, looked at and given back, and the cache filled again.
fn recalled(reserve: &Reserve, tenant: &mut Tenant, pages: u64, samples: &mut Samples) {
    match ask(reserve, Duration::ZERO, Request::new(Pages::new(pages)), false) {
        Ok(mut held) => {
            samples.own(CASE, pages, &held);
            held.mark(Marking::Pages);
        }
        Err(why) => samples.failed(CASE, pages, GLEBE, why.to_string()),
    }
    tenant.refill(reserve);
}

/// A run out of memory blocks, and its frames.
fn evacuated(pages: u64) -> PeerSample {
    let pages = Pages::new(pages);
    let watch = Stopwatch::start();
    let contig = Contig::options().source(Source::Blocks).threads(1).map(pages.bytes(page_size()));
    let took = watch.elapsed();
    let (longest_run, failed) = match &contig {
        Ok(contig) => (longest_run(contig.mapping().addr(), pages), None),
        Err(why) => (None, Some(why.to_string())),
    };
    let (wall_us, cpu_us) = (took.wall_us, took.cpu_us);
    PeerSample { wall_us, cpu_us, longest_run, from_idle_pool: 0, failed }
}
