//! Compares mark and unmark (if nothing is lost) to `MADV_DONTNEED` with new faults, and to malloc
//! and free. Compares mark and unmark of single pages to the fewest calls that an engine can make.
//!
//! Ranges are from one page to the whole memory, in base and huge pages. Contestants take turns.
//! Units: nanoseconds per base page; microseconds for single pages.

use std::fs;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use glebe::internal::sys::memory::madvise::Advice;
use glebe::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use super::bare::Bare;
use super::{ratios, Which};
use crate::clock::timed;
use crate::contig::name;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{by_round, rounds, NO_END};
use crate::Outcome;

const LEN: Bytes = Bytes::mib(256);
const HUGE: Bytes = Bytes::mib(2);
/// Ratios for huge pages need at least this percentage of the memory in huge pages.
const ENOUGH_PERCENT: u64 = 95;
/// Number of single pages per sample, and most ranges per sample.
const BATCH: u64 = 500;
const UNIT: &str = "ns/page";
const DONT_NEED: &str = "MADV_DONTNEED, fault in";
const MALLOC: &str = "malloc, touch, free";

struct Memory {
    huge: Option<Bytes>,
    regions: Vec<(Which, Result<Region, String>)>,
    bare: Bare,
}

pub(super) fn measure(report: &mut Report) -> Outcome {
    let small = [page_size().bytes(), Bytes::new(64 << 10), Bytes::mib(1), LEN];
    for (grain, huge, lengths) in [("4k", None, &small[..]), ("2m", Some(HUGE), &[HUGE, LEN])] {
        let memory = Memory::new(huge)?;
        for &len in lengths {
            memory.cycles(&format!("cycle_{grain}_of_{}", name(len)), len, false, report)?;
        }
        let (case, touched) = case_of_all(grain);
        memory.cycles(&touched, LEN, true, report)?;
        let here = memory.regions.iter().filter(|(_, region)| region.is_ok());
        let here: Vec<Which> = here.map(|(which, _)| *which).collect();
        let mut is_as_told = true;
        if huge.is_some() {
            let (had, all) = (in_huge_pages()?, LEN.get() * (here.len() as u64 + 1));
            is_as_told = had.get() >= all / 100 * ENOUGH_PERCENT;
            report.note(&format!("cycle_2m: {had} of {} in huge pages.", Bytes::new(all)));
        }
        for (case, by) in [(case, "cycle_vs_dontneed"), (touched, "cycle_touched_vs_dontneed")] {
            ratios(&format!("{by}_{grain}"), &here, report, |which, report| {
                let own = report.median(&case, which.who());
                // With too few huge pages, the ratio is NaN.
                report.median(&case, DONT_NEED) / if is_as_told { own } else { f64::NAN }
            });
        }
    }
    Ok(())
}

fn case_of_all(grain: &str) -> (String, String) {
    let case = format!("cycle_{grain}_of_{}", name(LEN));
    let touched = format!("{case}_touched");
    (case, touched)
}

/// Returns this process's bytes in transparent huge pages, which the kernel may silently withhold.
/// Source: proc_pid_smaps(5).
fn in_huge_pages() -> Outcome<Bytes> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(Bytes::new(kib.ok_or("smaps_rollup: no AnonHugePages")? << 10))
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

    /// Measures cycles. With `touched`, a region's cycle ends with a write to each page, as the
    /// cycles of `MADV_DONTNEED` and malloc always do.
    fn cycles(&self, case: &str, len: Bytes, touched: bool, report: &mut Report) -> Outcome {
        // A sample takes all of the memory, but at most [`BATCH`] ranges.
        let ranges = (LEN.get() / len.get()).min(BATCH);
        let step = LEN.get() / ranges / len.get() * len.get();
        let pages = (ranges * len.pages_up(page_size()).get()) as f64;
        let touch = self.huge.unwrap_or(page_size().bytes());
        let ns = |cycle: &dyn Fn(Range<Bytes>) -> Outcome| -> Outcome<f64> {
            let mut places = (0..ranges).map(|nth| Bytes::new(nth * step));
            let (done, took) = timed(|| places.try_for_each(|at| cycle(at..at + len)));
            done.map(|()| took.wall_us * 1e3 / pages)
        };
        for _ in rounds(case, report.plan(3, 15), NO_END) {
            for (which, region) in &self.regions {
                let cycle = |region: &Region| {
                    ns(&|range| {
                        region.mark(range.clone(), Priority::NORMAL)?;
                        drop(black_box(region.unmark(range.clone())?));
                        if touched {
                            Bare::touch_region(region, range, touch);
                        }
                        Ok(())
                    })
                };
                let region = region.as_ref().map_err(|why| why.as_str().into());
                report.outcome(case, which.who(), UNIT, region.and_then(cycle));
            }
            let given_back = ns(&|range| {
                self.bare.advise(range.start, len, Advice::DontNeed)?;
                self.bare.touch(range.start, len, touch);
                Ok(())
            })?;
            report.add(case, DONT_NEED, UNIT, given_back);
            if self.huge.is_none() && !touched {
                report.add(case, MALLOC, UNIT, ns(&|_| malloc_touch_free(len, touch))?);
            }
        }
        Ok(())
    }
}

fn malloc_touch_free(len: Bytes, step: Bytes) -> Outcome {
    let mut memory = Vec::<u8>::with_capacity(len.as_usize());
    for byte in memory.spare_capacity_mut().iter_mut().step_by(step.as_usize()) {
        byte.write(1);
    }
    drop(black_box(memory));
    Ok(())
}

pub(super) fn one_page(report: &mut Report) -> Outcome {
    const CASE: &str = "one_page";
    const LEN: Bytes = Bytes::mib(32);
    const UNIT: &str = "us";
    let page = page_size().bytes();
    let bare_name = |which: Which| format!("bare calls of {}", which.name());
    let mut here = Vec::new();
    for which in Which::ALL {
        let own = which.who();
        let both = which.map(LEN).and_then(|one| Ok((one, which.map(LEN)?)));
        let both = both.inspect_err(|why| report.remark(CASE, own, UNIT, &why.to_string()));
        let Ok((region, other)) = both else { continue };
        let block = vec![0x5a; LEN.as_usize()];
        region.write(Bytes::ZERO, &block)?;
        other.write(Bytes::ZERO, &block)?;
        let bare = Bare::of(other);
        drop(block);
        let mut random = Random::new(11);
        for _ in rounds(CASE, report.plan(24, 120), NO_END) {
            let pages = LEN.pages_down(page_size()).get();
            let places: Vec<Bytes> =
                (0..BATCH).map(|_| Bytes::new(random.below(pages) * page.get())).collect();
            let mut add = |who: &str, call: &dyn Fn(Bytes) -> Outcome| -> Outcome {
                let (done, took) = timed(|| places.iter().try_for_each(|&at| call(at)));
                report.add(CASE, who, UNIT, took.wall_us / BATCH as f64);
                done
            };
            add(own, &|at| {
                region.mark(at..at + page, Priority::NORMAL)?;
                Ok(region.unmark(at..at + page).map(|lost| drop(black_box(lost)))?)
            })?;
            add(&bare_name(which), &|at| bare_calls(which, &bare, at))?;
        }
        here.push(which);
    }
    ratios("one_page_vs_bare_calls", &here, report, |which, report| {
        let of = |who: &str| report.of(CASE, who, UNIT);
        by_round(of(&bare_name(which)), of(which.who()))
    });
    report.note(
        "one_page: the bare calls are MADV_FREE and MADV_POPULATE_WRITE (scan), MADV_FREE between \
         two exchanges of a word (tag), on the memory of another such region, which a userfaultfd \
         watches or not as the engine has it, and keep no record. \
         The ratio is the median of those of the rounds, and without an engine's name that of the \
         worse engine.",
    );
    Ok(())
}

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
