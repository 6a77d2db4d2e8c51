//! Compares three ways to serve a request: evacuating memory blocks, the reserve's recall, and huge
//! pages on demand. The blocks are full of page cache and a busy program's memory. Evacuation is
//! the nearest to CMA that an unchanged kernel offers.
//!
//! Reading a sparse file fills the page cache. Units: base pages, microseconds.

use std::fs::File;
use std::io::{Read, Seek};
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};

use super::requests::ask;
use super::tenant::Tenant;
use super::{GLEBE, LARGEST, REQUEST_PAGES, SURPLUS};
use crate::contig::fragment::Taker;
use crate::interrupt;
use crate::memory::Memory;
use crate::pressure::nameless;
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const CASE: &str = "evacuate";
const BLOCKS: &str = "blocks";
const RATIO: &str = "max_32000_vs_evacuation";
const CONTESTANTS: [&str; 3] = [GLEBE, BLOCKS, SURPLUS.0];
const ROUNDS: u64 = 8;
const BUSY: Bytes = Bytes::gib(4);
/// Free memory at which the page cache counts as full.
const SCARCE: Bytes = Bytes::mib(400);
/// Length of the file as a multiple of available memory, so that reads never hit the cache.
const MEMORIES: u64 = 3;
const CHUNK: Bytes = Bytes::mib(1);

/// Reads `file` in a circle until less than [`SCARCE`] is free, but at most the bytes free at the
/// start.
fn fill_cache(file: &mut File) -> Outcome {
    let mut buffer = vec![0; CHUNK.as_usize()];
    // The kernel may free memory meanwhile, so the loop needs a bound.
    for _ in 0..meminfo::read("MemFree")?.get() / CHUNK.get() {
        interrupt::check();
        if meminfo::read("MemFree")? < SCARCE {
            break;
        }
        if file.read(&mut buffer)? == 0 {
            file.rewind()?;
        }
    }
    Ok(())
}

/// `reserve` is full of pages of `tenant`. A quick run does not touch memory blocks.
pub(super) fn measure(reserve: &Reserve, tenant: &mut Tenant, report: &mut Report) -> Outcome {
    report.ratio(RATIO, f64::NAN); // so that the JSON always has the name
    let case = |pages: u64| format!("{CASE}_{pages}");
    // Tries blocks first, because filling memory is useless without privilege or blocks.
    let refused = match report.options.quick {
        true => Some("not in a quick run: blocks of the machine go off line".to_owned()),
        false => of_blocks(Bytes::mib(2)).err().map(|why| why.to_string()),
    };
    if let Some(why) = refused {
        report.remark(&case(LARGEST), BLOCKS, "us", &why);
        return Ok(());
    }
    let available = meminfo::available()?.get();
    let mut busy = Taker::new("busy", BUSY.min(Bytes::new(available / 4)))?;
    let mut file = nameless(&report.options.scratch(), Bytes::new(available * MEMORIES))?;
    fill_cache(&mut file)?;
    let stall = format!("busy_stall_{LARGEST}");
    let longest = reserve.contig().longest_run().get();
    for _ in rounds(CASE, ROUNDS, NO_END) {
        for (pages, who) in REQUEST_PAGES.into_iter().flat_map(|p| CONTESTANTS.map(|who| (p, who)))
        {
            busy.told()?;
            let len = Pages::new(pages).bytes(page_size());
            let taken = |memory: Memory| (memory.took.wall_us, memory.longest_run());
            let took = match who {
                GLEBE if pages > longest => continue,
                GLEBE => ask(reserve, Duration::ZERO, pages, false).map_err(Into::into).map(
                    |mut held| {
                        let took = (held.took.wall_us, held.longest_run);
                        held.mark(report);
                        held.check(report);
                        tenant.refill(reserve);
                        took
                    },
                ),
                BLOCKS => of_blocks(len).map(taken),
                _ => SURPLUS.1.obtain(len).map(taken),
            };
            if let Ok((_, Some(run))) = took {
                let case = format!("{CASE}_longest_run_{pages}");
                report.add(&case, who, "pages", run.get() as f64);
            }
            report.outcome(&case(pages), who, "us", took.map(|(us, _)| us));
            let (wrong, worst_us) = busy.told()?;
            report.check("wrong_bytes", wrong * size_of::<u64>() as u64);
            if pages == LARGEST {
                report.add(&stall, who, "us", worst_us);
            }
            fill_cache(&mut file)?;
        }
    }
    let max = |who| report.figure((&case(LARGEST), who, "us"), |summary| summary.max);
    report.ratio(RATIO, max(BLOCKS) / max(GLEBE));
    report.note(&format!(
        "`{CASE}`: blocks full of page cache and of a program that writes to {} at random; what is \
         timed of `{BLOCKS}` includes zeroing. `{stall}`: the longest that 64 writes of that \
         program took beside each request.",
        busy.held
    ));
    Ok(())
}

fn of_blocks(len: Bytes) -> Outcome<Memory> {
    Memory::glebe(Contig::options().source(Source::Blocks).threads(1), len)
}
