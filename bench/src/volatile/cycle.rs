//! Mark and unmark, nothing lost, beside what programs do without: `MADV_DONTNEED` and faulting in
//! again, and malloc and free.
//!
//! Ranges from one page to all of the memory, in small pages and in huge ones; all contestants by
//! turns, each on memory of its own that is written throughout. Unit: nanoseconds a base page.

use std::hint::black_box;
use std::ops::Range;

use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use super::bare::{Bare, Call};
use super::huge_pages::{huge_bytes, judge};
use super::measure::worst;
use super::{Error, Which};
use crate::clock::{micros, wall};
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::summary::Summary;

const LEN: Bytes = Bytes::mib(256);
const HUGE: Bytes = Bytes::mib(2);
const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 3;
/// Single pages that make one sample.
const BATCH: u64 = 500;
const DONT_NEED: &str = "MADV_DONTNEED, fault in";
const MALLOC: &str = "malloc, touch, free";

/// A region, or why there is none.
type MaybeRegion = Result<Region, String>;

/// What a contestant took, a sample a round.
struct Line {
    who: String,
    ns: Vec<f64>,
    absent: Option<String>,
    /// Its memory, whose huge pages are looked at after each round.
    range: Option<Range<usize>>,
    /// The least of it that was in huge pages.
    huge: Option<Bytes>,
}

impl Line {
    fn new(who: &str) -> Self {
        Self { who: who.into(), ns: Vec::new(), absent: None, range: None, huge: None }
    }

    fn look(&mut self) {
        if let Some(range) = &self.range {
            let now = huge_bytes(range);
            self.huge = Some(self.huge.map_or(now, |least| least.min(now)));
        }
    }

    fn median(&self) -> Option<f64> {
        Summary::of(&self.ns).map(|summary| summary.median)
    }
}

/// Rows and ratios of all lengths.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    for huge in [false, true] {
        let small = [page_size().bytes(), Bytes::new(64 << 10), Bytes::mib(1), LEN];
        let lengths = if huge { &[HUGE, LEN][..] } else { &small[..] };
        let regions = regions(huge)?;
        let bare = Bare::new(LEN, huge.then_some(HUGE))?;
        bare.touch(Bytes::ZERO, LEN, page_size().bytes());
        for &len in lengths {
            let lines = lines(&regions, &bare, len, huge, rounds)?;
            tell(&lines, len, huge, report);
        }
    }
    Ok(())
}

/// One of each engine that there is, written throughout; or why not.
fn regions(huge: bool) -> Result<Vec<(Which, MaybeRegion)>, Error> {
    let mut regions = Vec::new();
    for which in Which::ALL {
        let options = Region::options().engine(which.engine()).huge(huge);
        let region = options.map(LEN).map_err(|e| e.to_string());
        if let Ok(region) = &region {
            let block = vec![0x5a; HUGE.as_usize()];
            for at in (0..LEN.get()).step_by(HUGE.as_usize()) {
                region.write(Bytes::new(at), &block)?;
            }
        }
        regions.push((which, region));
    }
    Ok(regions)
}

fn lines(
    regions: &[(Which, MaybeRegion)],
    bare: &Bare,
    len: Bytes,
    huge: bool,
    rounds: usize,
) -> Result<Vec<Line>, Error> {
    let mut lines: Vec<_> =
        regions.iter().map(|(which, _)| Line::new(&format!("glebe {}", which.name()))).collect();
    let peers = lines.len();
    lines.push(Line::new(DONT_NEED));
    if huge {
        for (line, (_, region)) in lines.iter_mut().zip(regions) {
            line.range = region.as_ref().ok().map(|region| part(region.addr()));
        }
        lines[peers].range = Some(part(bare.addr()));
        lines.iter_mut().for_each(Line::look);
    }
    if !huge {
        lines.push(Line::new(MALLOC));
    }
    // As much as makes a sample: all of the memory, or some ranges of it.
    let ranges = (LEN.get() / len.get()).min(BATCH);
    let step = LEN.get() / ranges / len.get() * len.get();
    let pages = (ranges * len.pages_up(page_size()).get()) as f64;
    let touch = if huge { HUGE } else { page_size().bytes() };
    for _ in 0..rounds {
        interrupt::check();
        for ((_, region), line) in regions.iter().zip(&mut lines) {
            let Ok(region) = region else {
                line.absent = region.as_ref().err().cloned();
                continue;
            };
            let start = wall();
            for nth in 0..ranges {
                let (from, to) = (Bytes::new(nth * step), Bytes::new(nth * step + len.get()));
                region.mark(from..to, Priority::NORMAL)?;
                let _ = black_box(region.unmark(from..to)?);
            }
            line.ns.push(micros(wall() - start) * 1e3 / pages);
        }
        let start = wall();
        for nth in 0..ranges {
            let at = Bytes::new(nth * step);
            bare.call(at, len, Call::DontNeed)?;
            bare.touch(at, len, touch);
        }
        lines[peers].ns.push(micros(wall() - start) * 1e3 / pages);
        if let Some(line) = lines.get_mut(peers + 1) {
            let start = wall();
            for _ in 0..ranges {
                let mut memory = Vec::<u8>::with_capacity(len.as_usize());
                for byte in memory.spare_capacity_mut().iter_mut().step_by(touch.as_usize()) {
                    byte.write(1);
                }
                drop(black_box(memory));
            }
            line.ns.push(micros(wall() - start) * 1e3 / pages);
        }
        lines.iter_mut().for_each(Line::look);
    }
    Ok(lines)
}

/// All of a contestant's memory.
fn part(addr: usize) -> Range<usize> {
    addr..addr + LEN.as_usize()
}

fn tell(lines: &[Line], len: Bytes, huge: bool, report: &mut Report) {
    let grain = if huge { "2m" } else { "4k" };
    let case = format!("cycle_{grain}_of_{}", short(len));
    for line in lines {
        match &line.absent {
            Some(why) => report.absent(&case, &line.who, "ns/page", why),
            None => {
                report.row(&case, &line.who, "ns/page", &line.ns);
                line.huge.iter().for_each(|huge| report.remark(&judge(*huge, LEN).1));
            }
        }
    }
    if len < LEN {
        return;
    }
    // Of small pages there is no ratio of huge ones.
    let counts = |line: &&Line| line.huge.is_none_or(|huge| judge(huge, LEN).0);
    let peer = lines.iter().find(|line| line.who == DONT_NEED).filter(counts);
    let peer = peer.and_then(Line::median).unwrap_or(f64::NAN);
    let mut ratios = Vec::new();
    for line in lines.iter().filter(|line| line.absent.is_none()) {
        let Some(engine) = line.who.strip_prefix("glebe ") else { continue };
        let own = Some(line).filter(counts).and_then(Line::median).unwrap_or(f64::NAN);
        report.ratio(&format!("cycle_vs_dontneed_{grain}_{engine}"), peer / own);
        ratios.push(peer / own);
    }
    // Of the worse engine.
    report.ratio(&format!("cycle_vs_dontneed_{grain}"), worst(&ratios));
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
    let rounds = if quick { 8 * ROUNDS_QUICK } else { 8 * ROUNDS };
    let page = page_size().bytes();
    let mut ratios = Vec::new();
    for which in Which::ALL {
        let who = format!("glebe {}", which.name());
        let region = match which.map(LEN) {
            Ok(region) => region,
            Err(why) => {
                report.absent(CASE, &who, "us", &why.to_string());
                continue;
            }
        };
        let other = which.map(LEN)?;
        let block = vec![0x5a; LEN.as_usize()];
        region.write(Bytes::ZERO, &block)?;
        other.write(Bytes::ZERO, &block)?;
        let bare = Bare::of(other);
        drop(block);
        let (mut glebe_us, mut bare_us) = (Vec::new(), Vec::new());
        let mut random = Random::new(11);
        for _ in 0..rounds {
            interrupt::check();
            let places: Vec<u64> =
                (0..BATCH).map(|_| random.below(LEN.get() / page.get()) * page.get()).collect();
            let start = wall();
            for &at in &places {
                let range = Bytes::new(at)..Bytes::new(at + page.get());
                region.mark(range.clone(), Priority::NORMAL)?;
                let _ = black_box(region.unmark(range)?);
            }
            glebe_us.push(micros(wall() - start) / BATCH as f64);
            let start = wall();
            for &at in &places {
                bare_calls(which, &bare, Bytes::new(at))?;
            }
            bare_us.push(micros(wall() - start) / BATCH as f64);
        }
        report.row(CASE, &who, "us", &glebe_us);
        report.row(CASE, &format!("bare calls of {}", which.name()), "us", &bare_us);
        // Round by round: whatever else the machine does falls on both.
        let rounds: Vec<f64> = bare_us.iter().zip(&glebe_us).map(|(bare, us)| bare / us).collect();
        let ratio = Summary::of(&rounds).map_or(f64::NAN, |summary| summary.median);
        report.ratio(&format!("one_page_vs_bare_calls_{}", which.name()), ratio);
        ratios.push(ratio);
    }
    report.ratio("one_page_vs_bare_calls", worst(&ratios));
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
    use std::sync::atomic::Ordering::{AcqRel, Relaxed};
    const TAG: u64 = 0xfeed_face_0000_0001;
    let page = page_size().bytes();
    match which {
        Which::Scan => {
            bare.call(at, page, Call::Free)?;
            bare.call(at, page, Call::PopulateWrite)?;
        }
        Which::Tag => {
            let saved = bare.word(at).swap(TAG, AcqRel);
            bare.call(at, page, Call::Free)?;
            let _ = black_box(bare.word(at).compare_exchange(TAG, saved, AcqRel, Relaxed));
        }
    }
    Ok(())
}
