//! Measures the time to allocate a block from a full reserve, which must take lent pages back.
//!
//! Packed objects fill one reserve, and clean pages of a page cache fill the other. Rounds
//! alternate which reserve is asked first.

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::reserve::{self, Request, Reserve};
use glebe::units::{Bytes, Pages};
use glebe::zpool::Codec;

use crate::clock::timed;
use crate::report::{Report, GLEBE};
use crate::reserve::keyed::Random;
use crate::turns::{median, rounds, NO_END};
use crate::Outcome;

const CALLED_BACK: u64 = 32000;
/// Bytes of a reserve, a little more than a block.
const RESERVE: Bytes = Bytes::mib(128);
/// Single pages taken and freed before each block.
const SINGLES: usize = 600;
const CASE: &str = "callback_32000";
const UNIT: &str = "us";
const CLEAN: &str = "clean page cache";

/// Makes a reserve with room for a block of 32000 pages, on transparent huge pages if possible.
pub(crate) fn reserve() -> Outcome<Reserve> {
    let memory = |source| Contig::options().source(source).build(RESERVE);
    let memory = memory(Source::Thp).or_else(|_| memory(Source::Plain));
    Ok(Reserve::options().build_on(memory.map_err(reserve::ReserveError::from)?)?)
}

/// `count` must be even, so that each reserve is first equally often.
pub(super) fn measure(count: u64, report: &mut Report) -> Outcome {
    let both = [(GLEBE, reserve()?), (CLEAN, reserve()?)];
    let objects = both[0].1.object_pool().codec(Codec::None).build()?;
    let cache = both[1].1.page_cache().namespace("clean")?;
    let pages = both[1].1.len().get();
    let page = vec![0x5a; page_size().bytes().as_usize()];
    let (mut random, mut bytes) = (Random::new(11), [0_u8; 2048]);
    for round in rounds("call-back", count, NO_END) {
        let first = round as usize % 2;
        // The reserve filled last is in the processor's caches; it gets the first request.
        for which in [1 - first, first] {
            if which == 0 {
                // Objects of about a third of a page, more than fit.
                for nth in 0..pages * 7 / 2 {
                    let len = 600 + random.below(1400) as usize;
                    bytes[..8].copy_from_slice(&nth.to_ne_bytes());
                    objects.insert(&bytes[..len])?;
                }
                let lent = both[0].1.stats().live.get() * 100 / pages;
                report.remark(CASE, GLEBE, UNIT, &format!("{lent} % of the reserve was lent"));
            } else {
                (0..pages).try_for_each(|index| cache.put(round, index, &page).map(drop))?;
            }
        }
        for which in [first, 1 - first] {
            let (who, reserve) = &both[which];
            // Takes and frees single pages first, which warms up the code as in an ordinary
            // program.
            let one = || reserve.alloc(Request::new(Pages::new(1)));
            drop((0..SINGLES).map(|_| one()).collect::<Result<Vec<_>, _>>()?);
            let request = Request::new(Pages::new(CALLED_BACK)).any();
            let (block, took) = timed(|| reserve.alloc(request));
            drop(block?);
            report.add(CASE, who, UNIT, took.wall_us);
        }
    }
    // The first and the second request of a round differ in time, so the median of all samples
    // could be anywhere between the two groups.
    let typical = |who: &str| {
        let samples = report.of(CASE, who, UNIT);
        let of = |nth: usize| samples.iter().skip(nth).step_by(2).copied().collect::<Vec<_>>();
        (median(&of(0)) + median(&of(1))) / 2.0
    };
    let ratio = typical(GLEBE) / typical(CLEAN);
    report.ratio("callback_32000_vs_clean", ratio);
    report.note(
        "callback: blocks of 32000 pages, of a reserve that is full of packed objects and of one \
         that is full of page cache; the ratio is of the means of those asked first and of those \
         asked second.",
    );
    Ok(())
}
