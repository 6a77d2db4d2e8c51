//! Mark and unmark, nothing lost, beside what programs do without: `MADV_DONTNEED` and faulting in
//! again, and malloc and free; and single pages beside the calls that an engine cannot do without.
//!
//! Ranges from one page to all of the memory, in small pages and in huge ones; all contestants by
//! turns, each on memory of its own that is written throughout. Unit: nanoseconds a base page.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use glebe::sys::madvise::Advice;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use super::bare::Bare;
use super::huge_pages::HugePages;
use super::measure::worst;
use super::{Error, Which};
use crate::clock::{micros, wall};
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{by_round, rounds, Samples, NO_END};

const LEN: Bytes = Bytes::mib(256);
const HUGE: Bytes = Bytes::mib(2);
/// Single pages that make one sample.
const BATCH: u64 = 500;
const UNIT: &str = "ns/page";
const DONT_NEED: &str = "MADV_DONTNEED, fault in";
const MALLOC: &str = "malloc, touch, free";

/// A region, or why there is none.
type MaybeRegion = Result<Region, String>;

/// Rows and ratios of all lengths.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    let count = if quick { 3 } else { 15 };
    let small = [page_size().bytes(), Bytes::new(64 << 10), Bytes::mib(1), LEN];
    for (grain, huge, lengths) in [("4k", false, &small[..]), ("2m", true, &[HUGE, LEN])] {
        let regions = regions(huge)?;
        let bare = Bare::new(LEN, huge.then_some(HUGE))?;
        bare.touch(Bytes::ZERO, LEN, page_size().bytes());
        for &len in lengths {
            lines(&regions, &bare, (grain, len), count, report)?;
        }
    }
    Ok(())
}

/// One of each engine that there is, written throughout; or why not.
fn regions(huge: bool) -> Result<Vec<(Which, MaybeRegion)>, Error> {
    let block = vec![0x5a; HUGE.as_usize()];
    let mut regions = Vec::new();
    for which in Which::ALL {
        let options = Region::options().engine(which.engine()).huge(huge);
        let region = options.build(LEN).map_err(|e| e.to_string());
        if let Ok(region) = &region {
            let places = (0..LEN.get()).step_by(HUGE.as_usize());
            places.into_iter().try_for_each(|at| region.write(Bytes::new(at), &block))?;
        }
        regions.push((which, region));
    }
    Ok(regions)
}

/// All contestants on ranges of one length.
fn lines(
    regions: &[(Which, MaybeRegion)],
    bare: &Bare,
    (grain, len): (&str, Bytes),
    count: u64,
    report: &mut Report,
) -> Result<(), Error> {
    let is_huge = grain == "2m";
    let case = format!("cycle_{grain}_of_{}", short(len));
    let mut table = Samples::default();
    let mut huge = HugePages::default();
    // As much as makes a sample: all of the memory, or some ranges of it.
    let ranges = (LEN.get() / len.get()).min(BATCH);
    let step = LEN.get() / ranges / len.get() * len.get();
    let pages = (ranges * len.pages_up(page_size()).get()) as f64;
    let touch = if is_huge { HUGE } else { page_size().bytes() };
    let timed = |cycle: &mut dyn FnMut(Range<Bytes>) -> Result<(), Error>| {
        let start = wall();
        for nth in 0..ranges {
            cycle(Bytes::new(nth * step)..Bytes::new(nth * step + len.get()))?;
        }
        Ok::<_, Error>(micros(wall() - start) * 1e3 / pages)
    };
    rounds(&case, (count, NO_END), |_| {
        for (which, region) in regions {
            let region = match region {
                Ok(region) => region,
                Err(why) => {
                    table.remark(&case, which.who(), UNIT, why);
                    continue;
                }
            };
            let ns = timed(&mut |range| {
                region.mark(range.clone(), Priority::NORMAL)?;
                let _ = black_box(region.unmark(range)?);
                Ok(())
            })?;
            table.add(&case, which.who(), UNIT, ns);
            huge.look(is_huge, which.who(), region.addr(), LEN);
        }
        let ns = timed(&mut |range| {
            bare.advise(range.start, len, Advice::DontNeed)?;
            bare.touch(range.start, len, touch);
            Ok(())
        })?;
        table.add(&case, DONT_NEED, UNIT, ns);
        huge.look(is_huge, DONT_NEED, bare.addr(), LEN);
        if !is_huge {
            let ns = timed(&mut |_| malloc_touch_free(len, touch))?;
            table.add(&case, MALLOC, UNIT, ns);
        }
        Ok::<_, Error>(())
    })?;
    huge.tell(|who, text| table.remark(&case, who, UNIT, text));
    table.report(report);
    // Of small pages there is no ratio of huge ones.
    let ns = |who: &str| if huge.are_small(who) { f64::NAN } else { table.median(&case, who) };
    let here = regions.iter().filter(|(_, region)| region.is_ok());
    let ratios = here.map(|(which, _)| (*which, ns(DONT_NEED) / ns(which.who())));
    if len == LEN {
        tell_worst(&format!("cycle_vs_dontneed_{grain}"), &ratios.collect::<Vec<_>>(), report);
    }
    Ok(())
}

/// Has memory of malloc's, writes a byte in each `step`, and frees it.
fn malloc_touch_free(len: Bytes, step: Bytes) -> Result<(), Error> {
    let mut memory = Vec::<u8>::with_capacity(len.as_usize());
    for byte in memory.spare_capacity_mut().iter_mut().step_by(step.as_usize()) {
        byte.write(1);
    }
    drop(black_box(memory));
    Ok(())
}

/// The ratio of each engine, and without a name that of the worse.
pub(super) fn tell_worst(name: &str, ratios: &[(Which, f64)], report: &mut Report) {
    for (which, ratio) in ratios {
        report.ratio(&format!("{name}_{}", which.name()), *ratio);
    }
    report.ratio(name, worst(ratios));
}

/// `4k`, `64k`, `1m`, `256m`.
fn short(len: Bytes) -> String {
    match len.get() {
        n if n >= 1 << 20 => format!("{}m", n >> 20),
        n => format!("{}k", n >> 10),
    }
}

/// Ranges of one page each, at random, beside the calls that each engine cannot do without.
pub(super) fn one_page(quick: bool, report: &mut Report) -> Result<(), Error> {
    const CASE: &str = "one_page";
    const LEN: Bytes = Bytes::mib(32);
    let page = page_size().bytes();
    let mut ratios = Vec::new();
    let mut table = Samples::default();
    for which in Which::ALL {
        let own = which.who();
        let region = match which.map(LEN) {
            Ok(region) => region,
            Err(why) => {
                table.remark(CASE, own, "us", &why.to_string());
                continue;
            }
        };
        let other = which.map(LEN)?;
        let block = vec![0x5a; LEN.as_usize()];
        region.write(Bytes::ZERO, &block)?;
        other.write(Bytes::ZERO, &block)?;
        let bare = Bare::of(other);
        drop(block);
        let peer = format!("bare calls of {}", which.name());
        let mut random = Random::new(11);
        rounds(CASE, (if quick { 24 } else { 120 }, NO_END), |_| {
            interrupt::check();
            let places: Vec<u64> =
                (0..BATCH).map(|_| random.below(LEN.get() / page.get()) * page.get()).collect();
            let start = wall();
            for &at in &places {
                let range = Bytes::new(at)..Bytes::new(at + page.get());
                region.mark(range.clone(), Priority::NORMAL)?;
                let _ = black_box(region.unmark(range)?);
            }
            table.add(CASE, own, "us", micros(wall() - start) / BATCH as f64);
            let start = wall();
            for &at in &places {
                bare_calls(which, &bare, Bytes::new(at))?;
            }
            table.add(CASE, &peer, "us", micros(wall() - start) / BATCH as f64);
            Ok::<_, Error>(())
        })?;
        let ratio = by_round(table.of(CASE, &peer, "us"), table.of(CASE, own, "us"));
        ratios.push((which, ratio));
    }
    table.report(report);
    tell_worst("one_page_vs_bare_calls", &ratios, report);
    report.note(
        "one_page: the bare calls are MADV_FREE and MADV_POPULATE_WRITE (scan), MADV_FREE between \
         two exchanges of a word (tag), on the memory of another such region, which a userfaultfd \
         watches or not as the engine has it, and keep no record. \
         The ratio is the median of those of the rounds, and without an engine's name that of the \
         worse engine.",
    );
    Ok(())
}

/// What marking and unmarking a page costs at the least.
fn bare_calls(which: Which, bare: &Bare, at: Bytes) -> Result<(), Error> {
    const TAG: u64 = 0xfeed_face_0000_0001;
    let page = page_size().bytes();
    match which {
        Which::Scan => {
            bare.advise(at, page, Advice::Free)?;
            bare.advise(at, page, Advice::PopulateWrite)?;
        }
        Which::Tag => {
            let saved = bare.word(at).swap(TAG, AcqRel);
            bare.advise(at, page, Advice::Free)?;
            let _ = black_box(bare.word(at).compare_exchange(TAG, saved, AcqRel, Relaxed));
        }
    }
    Ok(())
}
