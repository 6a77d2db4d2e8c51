//! *CMA as a stock kernel can have it*: requests served by evacuating memory blocks that are full
//! of page cache and of a busy program's memory, beside the reserve's recall and huge pages on
//! demand.
//!
//! The page cache is filled with a file of holes until little is free, beside a program that writes
//! at random to memory of its own; after each evacuation it is filled again, so that the next finds
//! full blocks. Contestants take turns. After each request the busy program says how long it was
//! kept waiting at worst, and whether a word was not as written. Units: base pages, microseconds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::error::OsError;
use glebe::reserve::{Request, Reserve};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults};
use super::tenant::Tenant;
use super::{Error, GLEBE, LARGEST, REQUEST_PAGES};
use crate::clock::Stopwatch;
use crate::contig::fragment::Busy;
use crate::interrupt;
use crate::peers::{self, longest_run, Peer};
use crate::pressure::nameless;
use crate::report::Report;
use crate::samples::{rounds, Samples, NO_END};

const CASE: &str = "evacuate";
const BLOCKS: &str = "blocks";
const RATIO: &str = "max_32000_vs_evacuation";
const CONTESTANTS: [&str; 3] = [GLEBE, BLOCKS, Peer::SurplusHugetlb.name()];
const ROUNDS: u64 = 8;
const BUSY: Bytes = Bytes::gib(4);
/// Free memory at which the page cache counts as full.
const SCARCE: Bytes = Bytes::mib(400);
/// So that what is read is never there yet: the file, in memories of the machine.
const MEMORIES: u64 = 3;
const CHUNK: Bytes = Bytes::mib(1);

/// A file of holes, read until memory is full of it.
struct CacheFile {
    file: File,
    len: Bytes,
    /// A multiple of [`CHUNK`].
    at: u64,
}

impl CacheFile {
    fn new(dir: &Path) -> Result<Self, OsError> {
        let len = meminfo::available()?.get() * MEMORIES;
        let len = Bytes::new(len.next_multiple_of(CHUNK.get()));
        Ok(Self { file: nameless(dir, len)?, len, at: 0 })
    }

    /// Reads on until little memory is free, as much as was free at most.
    fn fill(&mut self) -> Result<(), OsError> {
        let mut buffer = vec![0; CHUNK.as_usize()];
        // The kernel frees more as this is read: what was free is enough.
        for _ in 0..meminfo::read("MemFree")?.get() / CHUNK.get() {
            interrupt::check();
            if meminfo::read("MemFree")? < SCARCE {
                break;
            }
            let read = self.file.read_at(&mut buffer, self.at);
            read.map_err(|e| OsError::new("pread", "a file of holes", e))?;
            self.at = (self.at + CHUNK.get()) % self.len.get();
        }
        Ok(())
    }
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
    let case = |pages: u64| format!("{CASE}_{pages}");
    let quick = quick.then(|| "not in a quick run: blocks of the machine go off line".to_owned());
    // Before memory is filled: without the privilege or the means that is for nothing.
    let refused = || Contig::options().source(Source::Blocks).build(Bytes::mib(2)).err();
    if let Some(why) = quick.or_else(|| refused().map(|why| why.to_string())) {
        report.absent(&case(LARGEST), BLOCKS, "us", &why);
        return Ok(());
    }
    let mut busy = Busy::start(BUSY.min(Bytes::new(meminfo::available()?.get() / 4)))?;
    let mut cache = CacheFile::new(dir)?;
    cache.fill()?;
    let (mut table, mut faults) = <(Samples, Faults)>::default();
    let (mut wrong, stall) = (0, format!("busy_stall_{LARGEST}"));
    let longest = reserve.contig().longest_run().get();
    rounds(CASE, (ROUNDS, NO_END), |_| {
        for (pages, who) in REQUEST_PAGES.into_iter().flat_map(|p| CONTESTANTS.map(|who| (p, who)))
        {
            busy.told()?;
            let took = match who {
                GLEBE if pages > longest => continue,
                GLEBE => recalled(reserve, tenant, pages, &mut faults),
                BLOCKS => evacuated(pages),
                _ => {
                    let sample = peers::measure(Peer::SurplusHugetlb, Pages::new(pages));
                    sample.failed.map_or(Ok((sample.wall_us, sample.longest_run)), Err)
                }
            };
            if let Ok((_, Some(run))) = took {
                table.add(&format!("{CASE}_longest_run_{pages}"), who, "pages", run.get() as f64);
            }
            table.outcome(&case(pages), who, "us", took.map(|(us, _)| us));
            let told = busy.told()?;
            wrong += told.wrong * size_of::<u64>() as u64;
            if pages == LARGEST {
                table.add(&stall, who, "us", told.worst_us);
            }
            cache.fill()?;
        }
        Ok::<_, Error>(())
    })?;
    report.check("wrong_bytes", wrong);
    faults.report(report);
    table.report(report);
    let max = |who| table.figure((&case(LARGEST), who, "us"), |summary| summary.max);
    report.ratio(RATIO, max(BLOCKS) / max(GLEBE));
    report.note(&format!(
        "`{CASE}`: blocks full of page cache and of a program that writes to {} at random; what is \
         timed of `{BLOCKS}` includes zeroing. `{stall}`: the longest that 64 writes of that \
         program took beside each request.",
        busy.held
    ));
    Ok(())
}

/// Microseconds and the longest run of frames.
type Took = Result<(f64, Option<Pages>), String>;

/// A block of the reserve, looked at and given back, and the cache filled again.
fn recalled(reserve: &Reserve, tenant: &mut Tenant, pages: u64, faults: &mut Faults) -> Took {
    let held = ask(reserve, Duration::ZERO, Request::new(Pages::new(pages)), false);
    let took = held.map_err(|why| why.to_string()).map(|mut held| {
        let took = (held.elapsed.wall_us, held.longest_run);
        faults.add(held.mark());
        faults.add(held.check());
        took
    });
    tenant.refill(reserve);
    took
}

/// A run out of memory blocks, and its frames.
fn evacuated(pages: u64) -> Took {
    let pages = Pages::new(pages);
    let watch = Stopwatch::start();
    let contig =
        Contig::options().source(Source::Blocks).threads(1).build(pages.bytes(page_size()));
    let us = watch.elapsed().wall_us;
    let contig = contig.map_err(|why| why.to_string())?;
    Ok((us, longest_run(contig.mapping().addr(), pages)))
}
