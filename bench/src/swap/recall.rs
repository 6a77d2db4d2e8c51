//! Times the allocation of blocks from a reserve that a swap cache has filled, under each `Policy`.
//! Compares with a reserve full of clean cache pages, a copy of equal length, and a write of equal
//! length to the device of the areas' files.
//!
//! All reserves are alike and refilled before each block. An area's lent pages hold only copies of
//! pages in its file. A `Policy` says where pages stay until the file has them. Unit: microseconds
//! per block.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use glebe::page_size;
use glebe::reserve::{Namespace, Request, Reserve};
use glebe::swap::cache::{Area, SwapCache};
use glebe::units::{Bytes, Pages};

use super::touched::{page_bytes, Corpus, Wrong};
use crate::clock::timed;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{turns, worst};
use crate::{zpool, Outcome};

const UNIT: &str = "us";
/// Pages of a block, and requests per round.
const BLOCKS: [(u64, u32); 5] = [(1, 20), (16, 20), (512, 10), (4096, 2), (32000, 1)];
/// Single pages taken before each request. These use up the reserve's stock of free pages, so that
/// a block of one page takes a lent page back.
const SINGLES: usize = 600;
/// Pages of an area per page of the reserve: more than the reserve can hold compressed.
const AREA_SHARE: u64 = 6;
/// Maximum number of pages put for each page of the reserve that is to be filled.
const FILLS: u64 = 4;
/// Pages stored in one call.
const BATCH: u64 = 512;
/// Pages checked after each block.
const LOOKS: usize = 4;
const SEGMENT: usize = 256 << 10;
/// Full means that at most `1 / FREE_SHARE` of the pages are free.
const FREE_SHARE: u64 = 256;
/// More bytes than a core's own caches hold.
const WALK: usize = 4 << 20;
const CLEAN: &str = "clean page cache";
const MEMCPY: &str = "memcpy";
const DEVICE: &str = "device write";

/// Ways to keep pages that are not yet in an area's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    WriteThrough,
    WriteBack,
    PutBack,
}

impl Policy {
    pub(super) const ALL: [Self; 3] = [Self::WriteThrough, Self::WriteBack, Self::PutBack];

    pub(super) fn who(self) -> &'static str {
        match self {
            Self::WriteThrough => "glebe write-through",
            Self::WriteBack => "glebe write-back",
            Self::PutBack => "glebe put-back",
        }
    }

    pub(super) fn set(self, area: &Area, most: Bytes) -> Outcome {
        match self {
            Self::WriteThrough => {}
            Self::WriteBack => area.set_write_back(most)?,
            Self::PutBack => area.set_put_back(most)?,
        }
        Ok(())
    }
}

enum Tenant {
    Swap(Box<Area>),
    Clean(Namespace),
}

struct Filled<'a> {
    reserve: Reserve,
    tenant: Tenant,
    corpus: &'a Corpus<'a>,
    next: u64,
    most: u64,
    random: Random,
}

pub(super) fn measure(corpus: &Corpus<'_>, report: &mut Report) -> Outcome {
    let (count, most) = report.plan((1, 8 * BATCH), (4, u64::MAX));
    let scratch = report.options.scratch();
    let mut all = Vec::new();
    for policy in Policy::ALL {
        all.push((policy.who(), Filled::by_swap(policy, corpus, most, &scratch)?));
    }
    all.push((CLEAN, Filled::by_cache(corpus, most)?));
    all.iter_mut().try_for_each(|(_, filled)| filled.refill(FILLS * filled.reserve.len().get()))?;
    let mut walked = vec![0_u8; WALK];
    for (pages, times) in BLOCKS {
        let case = format!("recall_{pages}");
        let times = report.plan(1, u64::from(times));
        let sides: Vec<usize> = (0..all.len()).collect();
        for (_, side) in turns(&case, count * times, &sides) {
            let (who, filled) = &mut all[side];
            // Puts more pages than the block has, because a page of the reserve holds several
            // compressed ones, and the single pages must be refilled too.
            filled.refill(FILLS * (pages + SINGLES as u64))?;
            let stats = filled.reserve.stats();
            let lent = stats.live.get() as f64 * 100.0 / filled.reserve.len().get() as f64;
            report.add("recall_lent", who, "% of the reserve", lent);
            let us = filled.recall(pages, &mut walked)?;
            report.add(&case, who, UNIT, us);
            super::judged(filled.look()?, report);
        }
        bare(&case, pages, corpus, count * times, &scratch, report)?;
    }
    ratios(report);
    Ok(())
}

impl<'a> Filled<'a> {
    fn by_swap(policy: Policy, corpus: &'a Corpus<'a>, most: u64, dir: &Path) -> Outcome<Self> {
        let reserve = zpool::reserve()?;
        let cache = SwapCache::on(&reserve)?;
        let pages = Pages::new(reserve.len().get() * AREA_SHARE);
        let area = cache.area(pages, dir, pages.bytes(page_size()))?;
        policy.set(&area, cache.usual_write_back())?;
        Ok(Self::new(reserve, Tenant::Swap(Box::new(area)), corpus, most))
    }

    fn by_cache(corpus: &'a Corpus<'a>, most: u64) -> Outcome<Self> {
        let reserve = zpool::reserve()?;
        let clean = reserve.page_cache().namespace("clean")?;
        Ok(Self::new(reserve, Tenant::Clean(clean), corpus, most))
    }

    fn new(reserve: Reserve, tenant: Tenant, corpus: &'a Corpus<'a>, most: u64) -> Self {
        Self { reserve, tenant, corpus, next: 0, most, random: Random::new(13) }
    }

    /// Puts batches of pages until at most `1 / FREE_SHARE` of the reserve is free, or until `most`
    /// or `self.most` pages were put.
    fn refill(&mut self, most: u64) -> Outcome {
        let (len, mut put) = (self.reserve.len().get(), 0);
        let most = self.most.min(most);
        while put < most && self.reserve.stats().free.get() > len / FREE_SHARE {
            let pages = self.next..self.next + BATCH;
            match &self.tenant {
                Tenant::Swap(area) => {
                    let offset = |page| page % area.pages().get();
                    area.store_all(
                        pages.map(|page| (offset(page), self.corpus.page(offset(page)))),
                    )?;
                }
                Tenant::Clean(cache) => {
                    for page in pages {
                        cache.put(0, page, self.corpus.page(page))?;
                    }
                }
            }
            self.next += BATCH;
            put += BATCH;
        }
        Ok(())
    }

    /// Times one block, in microseconds. Walks over `walked` first, so that no contestant finds its
    /// data in the processor's caches.
    fn recall(&mut self, pages: u64, walked: &mut [u8]) -> Outcome<f64> {
        let one = || self.reserve.alloc(Request::new(Pages::new(1)));
        let singles = (0..SINGLES).map(|_| one()).collect::<Result<Vec<_>, _>>()?;
        // For a block of one page, holds the singles, so that the request finds no free page. For a
        // longer block, frees them to make room.
        let held = (pages == 1).then_some(singles);
        let request = Request::new(Pages::new(pages)).any();
        walked.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        std::hint::black_box(walked);
        let (block, took) = timed(|| self.reserve.alloc(request));
        block?.bytes_mut()?.fill(0xee);
        drop(held);
        Ok(took.wall_us)
    }

    /// Checks some pages of an area: a recall must lose none.
    fn look(&mut self) -> Outcome<Wrong> {
        let (Tenant::Swap(area), mut wrong) = (&self.tenant, Wrong::default()) else {
            return Ok(Wrong::default());
        };
        let mut page = vec![0; page_bytes()];
        for _ in 0..LOOKS {
            let offset = self.random.below(self.next.min(area.pages().get()));
            let is_there = area.load(offset, &mut page)?;
            let of = self.corpus.page(offset);
            wrong.lost_writes += u64::from(!is_there);
            wrong.bytes += page.iter().zip(of).filter(|(is, was)| is != was).count() as u64;
        }
        Ok(wrong)
    }
}

fn bare(
    case: &str,
    pages: u64,
    corpus: &Corpus<'_>,
    count: u64,
    dir: &Path,
    report: &mut Report,
) -> Outcome {
    let len = pages as usize * page_bytes();
    let file = direct(dir);
    // Filled with 1, so that all pages exist.
    let mut copy = vec![1; len.min(corpus.0.len())];
    let from = &corpus.0[..copy.len()];
    for _ in 0..count {
        let times = len.div_ceil(copy.len());
        let ((), took) = timed(|| (0..times).for_each(|_| copy.copy_from_slice(from)));
        std::hint::black_box(&copy);
        report.add(case, MEMCPY, UNIT, took.wall_us);
        let written = file.as_ref().map_err(ToString::to_string).and_then(|file| {
            let write = |at: usize| {
                let bytes = &from[at % from.len()..];
                let bytes = &bytes[..SEGMENT.min(len - at).min(bytes.len())];
                file.write_all_at(bytes, at as u64)
            };
            let (written, took) = timed(|| (0..len).step_by(SEGMENT).try_for_each(write));
            written.map(|()| took.wall_us).map_err(|e| e.to_string())
        });
        report.outcome(case, DEVICE, UNIT, written);
    }
    Ok(())
}

fn direct(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_DIRECT | libc::O_CLOEXEC);
    options.open(dir)
}

fn ratios(report: &mut Report) {
    let mut clean = Vec::new();
    for (pages, _) in BLOCKS {
        let case = format!("recall_{pages}");
        let against = |who: &str, policy: Policy| {
            report.median(&case, who) / report.median(&case, policy.who())
        };
        clean.push(against(CLEAN, Policy::WriteThrough));
        let copied = against(MEMCPY, Policy::PutBack);
        let written = report.median(&case, Policy::WriteBack.who());
        report.ratio(&format!("recall_writethrough_vs_clean_{pages}"), clean[clean.len() - 1]);
        report.ratio(&format!("recall_putback_vs_memcpy_{pages}"), copied);
        if pages == 512 {
            report.ratio("recall_putback_vs_memcpy", copied);
            report.add("recall_writeback", Policy::WriteBack.who(), UNIT, written);
        }
    }
    report.ratio("recall_writethrough_vs_clean", worst(&clean));
    report.note(
        "recall: the area's default of bytes that may be unsaved, as write-back and as put-back; \
         recall_writethrough_vs_clean is that of the worst length, recall_putback_vs_memcpy and \
         recall_writeback are of 512 pages. memcpy, device write: as many bytes as the block has. \
         Before each block all sides walk 4 MiB of other memory.",
    );
}
