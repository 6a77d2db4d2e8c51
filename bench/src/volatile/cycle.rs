//! Mark and unmark, nothing lost, beside what programs do without: `MADV_DONTNEED` and faulting in
//! again, and malloc and free; and single pages beside the calls that an engine cannot do without.
//!
//! Ranges from one page to all of the memory, in small pages and in huge ones; all contestants by
//! turns, each on memory of its own that is written throughout. Unit: nanoseconds a base page.

use std::fs;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use glebe::sys::madvise::Advice;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use super::bare::Bare;
use super::{tell_worst, Which};
use crate::clock::{micros, wall};
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{by_round, rounds, NO_END};
use crate::Outcome;

const LEN: Bytes = Bytes::mib(256);
const HUGE: Bytes = Bytes::mib(2);
/// Of memory that is to be in huge pages, the part from which on its figure is one of huge pages.
const ENOUGH_PERCENT: u64 = 95;
/// Single pages that make one sample.
const BATCH: u64 = 500;
const UNIT: &str = "ns/page";
const DONT_NEED: &str = "MADV_DONTNEED, fault in";
const MALLOC: &str = "malloc, touch, free";

/// The memory of all contestants, written throughout.
struct Memory {
    huge: Option<Bytes>,
    /// Of each engine, or why it has none.
    regions: Vec<(Which, Result<Region, String>)>,
    bare: Bare,
}

/// Rows and ratios of all lengths.
pub(super) fn measure(report: &mut Report) -> Outcome {
    let small = [page_size().bytes(), Bytes::new(64 << 10), Bytes::mib(1), LEN];
    for (grain, huge, lengths) in [("4k", None, &small[..]), ("2m", Some(HUGE), &[HUGE, LEN])] {
        let memory = Memory::new(huge)?;
        for &len in lengths {
            let case = format!("cycle_{grain}_of_{}", short(len));
            memory.cycles(&case, len, report)?;
            let small = memory.not_huge(&case, report);
            if len == LEN {
                // Of small pages there is no ratio of huge ones.
                let is_small = |who| small.contains(&who);
                let ns = |who| if is_small(who) { f64::NAN } else { report.median(&case, who) };
                let here = memory.regions.iter().filter(|(_, region)| region.is_ok());
                let ratio = |which: Which| (which, ns(DONT_NEED) / ns(which.who()));
                let ratios: Vec<_> = here.map(|(which, _)| ratio(*which)).collect();
                tell_worst(&format!("cycle_vs_dontneed_{grain}"), &ratios, report);
            }
        }
    }
    Ok(())
}

impl Memory {
    fn new(huge: Option<Bytes>) -> Outcome<Self> {
        let block = vec![0x5a; HUGE.as_usize()];
        let mut regions = Vec::new();
        for which in Which::ALL {
            let region = which.options().huge(huge.is_some()).build(LEN);
            if let Ok(region) = &region {
                let mut places = (0..LEN.get()).step_by(block.len());
                places.try_for_each(|at| region.write(Bytes::new(at), &block))?;
            }
            regions.push((which, region.map_err(|why| why.to_string())));
        }
        let bare = Bare::new(LEN, huge)?;
        bare.touch(Bytes::ZERO, LEN, page_size().bytes());
        Ok(Self { huge, regions, bare })
    }

    /// All contestants on ranges of one length.
    fn cycles(&self, case: &str, len: Bytes, report: &mut Report) -> Outcome {
        // As much as makes a sample: all of the memory, or some ranges of it.
        let ranges = (LEN.get() / len.get()).min(BATCH);
        let step = LEN.get() / ranges / len.get() * len.get();
        let pages = (ranges * len.pages_up(page_size()).get()) as f64;
        let touch = self.huge.unwrap_or(page_size().bytes());
        let timed = |cycle: &dyn Fn(Range<Bytes>) -> Outcome| {
            let start = wall();
            for at in (0..ranges).map(|nth| Bytes::new(nth * step)) {
                cycle(at..at + len)?;
            }
            Outcome::Ok(micros(wall() - start) * 1e3 / pages)
        };
        for _ in rounds(case, report.plan(3, 15), NO_END) {
            for (which, region) in &self.regions {
                let region = match region {
                    Ok(region) => region,
                    Err(why) => {
                        report.remark(case, which.who(), UNIT, why);
                        continue;
                    }
                };
                let ns = timed(&|range| {
                    region.mark(range.clone(), Priority::NORMAL)?;
                    let _ = black_box(region.unmark(range)?);
                    Ok(())
                })?;
                report.add(case, which.who(), UNIT, ns);
            }
            let ns = timed(&|range| {
                self.bare.advise(range.start, len, Advice::DontNeed)?;
                self.bare.touch(range.start, len, touch);
                Ok(())
            })?;
            report.add(case, DONT_NEED, UNIT, ns);
            if self.huge.is_none() {
                report.add(case, MALLOC, UNIT, timed(&|_| malloc_touch_free(len, touch))?);
            }
        }
        Ok(())
    }

    /// Notes how much of the memory that was to be in huge pages is: the kernel gives them if it
    /// can, and says nothing where it cannot. Returns who has too few.
    fn not_huge(&self, case: &str, report: &mut Report) -> Vec<&'static str> {
        if self.huge.is_none() {
            return Vec::new();
        }
        let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let regions = self.regions.iter();
        let regions = regions.filter_map(|(of, region)| Some((of.who(), region.as_ref().ok()?)));
        let places = regions.map(|(who, region)| (who, region.addr()));
        let mut small = Vec::new();
        for (who, addr) in places.chain([(DONT_NEED, self.bare.addr())]) {
            let had = huge_of(&text, &(addr..addr + LEN.as_usize()));
            let mut not = "";
            if had.get() < LEN.get() / 100 * ENOUGH_PERCENT {
                not = "not huge: ";
                small.push(who);
            }
            let text = format!("{not}{had} of {LEN} in huge pages");
            report.remark(case, who, UNIT, &text);
        }
        small
    }
}

/// Of the text of smaps, what lies in transparent huge pages. Of a mapping that reaches beyond the
/// range all counts, up to the range's length. Source: proc_pid_smaps(5), `AnonHugePages`.
fn huge_of(text: &str, range: &Range<usize>) -> Bytes {
    let bounds = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    };
    let (mut is_inside, mut kib) = (false, 0);
    for line in text.lines() {
        if let Some((start, end)) = bounds(line) {
            is_inside = start < range.end && end > range.start;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        }
    }
    Bytes::new((kib << 10).min(range.len() as u64))
}

/// Has memory of malloc's, writes a byte in each `step`, and frees it.
fn malloc_touch_free(len: Bytes, step: Bytes) -> Outcome {
    let mut memory = Vec::<u8>::with_capacity(len.as_usize());
    for byte in memory.spare_capacity_mut().iter_mut().step_by(step.as_usize()) {
        byte.write(1);
    }
    drop(black_box(memory));
    Ok(())
}

/// `4k`, `64k`, `1m`, `256m`.
fn short(len: Bytes) -> String {
    match len.get() {
        n if n >= 1 << 20 => format!("{}m", n >> 20),
        n => format!("{}k", n >> 10),
    }
}

/// Ranges of one page each, at random, beside the calls that each engine cannot do without.
pub(super) fn one_page(report: &mut Report) -> Outcome {
    const CASE: &str = "one_page";
    const LEN: Bytes = Bytes::mib(32);
    const UNIT: &str = "us";
    let page = page_size().bytes();
    let mut ratios = Vec::new();
    for which in Which::ALL {
        let own = which.who();
        let (region, other) = match which.map(LEN).and_then(|one| Ok((one, which.map(LEN)?))) {
            Ok(both) => both,
            Err(why) => {
                report.remark(CASE, own, UNIT, &why.to_string());
                continue;
            }
        };
        let block = vec![0x5a; LEN.as_usize()];
        region.write(Bytes::ZERO, &block)?;
        other.write(Bytes::ZERO, &block)?;
        let bare = Bare::of(other);
        drop(block);
        let peer = format!("bare calls of {}", which.name());
        let mut random = Random::new(11);
        for _ in rounds(CASE, report.plan(24, 120), NO_END) {
            let pages = LEN.pages_down(page_size()).get();
            let places: Vec<Bytes> =
                (0..BATCH).map(|_| Bytes::new(random.below(pages) * page.get())).collect();
            let start = wall();
            for &at in &places {
                region.mark(at..at + page, Priority::NORMAL)?;
                let _ = black_box(region.unmark(at..at + page)?);
            }
            report.add(CASE, own, UNIT, micros(wall() - start) / BATCH as f64);
            let start = wall();
            for &at in &places {
                bare_calls(which, &bare, at)?;
            }
            report.add(CASE, &peer, UNIT, micros(wall() - start) / BATCH as f64);
        }
        let ratio = by_round(report.of(CASE, &peer, UNIT), report.of(CASE, own, UNIT));
        ratios.push((which, ratio));
    }
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
fn bare_calls(which: Which, bare: &Bare, at: Bytes) -> Outcome {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
AnonHugePages:      2048 kB\n\
7f0000400000-7f0000600000 rw-p 00000000 00:00 0    [anon:x]\n\
AnonHugePages:      2048 kB\n\
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 \n\
AnonHugePages:         0 kB\n";

    #[test]
    fn mappings_of_the_range_count_up_to_its_length() {
        let at = |mib: usize| 0x7f00_0000_0000 + (mib << 20);
        for (from, to, mib) in [(0, 4, 2), (0, 6, 4), (4, 6, 2), (5, 6, 1), (6, 10, 0)] {
            assert_eq!(huge_of(TEXT, &(at(from)..at(to))), Bytes::mib(mib), "{from} {to}");
        }
    }
}
