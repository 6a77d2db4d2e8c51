//! [`ClosedBlock`] is a block of whole bricks that other processes may map.
//!
//! A *brick* is a file of one or more hugetlb pages ([`Options::bricks_of`]). The reserve unmaps a
//! closed block, so a late reader finds zeros even if a holder cuts a brick. The drop cuts bricks
//! that were given away, which ends all holders' access, and fills new ones. Bricks whose frames do
//! not all come back leave the reserve; [`Reserve::grow`] can replace them.
//!
//! [`Options::bricks_of`]: crate::contig::Options::bricks_of

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::block::Promise;
use super::error::ReserveError;
use super::memory::Memory;
use super::owner::{pages_of, Request};
use super::shared::Shared;
use super::{Reserve, ReserveCore};
use crate::contig::internal::{cut, join, punch, recast, Keeping};
use crate::contig::PoolLock;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::BrickSize;
use glebe_os::internal::sys::memory::brick::Brick;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{PageSize, Pages, Pfn};

/// Attempts to get the same frames again, and the time between two.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(2);
/// Patience with the pool's lock, while others wait.
const AT_ONCE: Duration = Duration::from_millis(1);

/// [`ClosedBlock`] is zeroed memory that other processes may map, until dropped.
#[derive(Debug)]
pub struct ClosedBlock {
    inner: Shared<ReserveCore>,
    places: Vec<BrickPlace>,
    /// One brick a place, or one for all.
    bricks: Vec<Brick>,
    is_given: bool,
    /// Keeps the pages of cut bricks in the pool.
    keeping: Option<Arc<Keeping>>,
}

#[derive(Clone, Debug)]
pub(super) struct BrickPlace {
    pub(super) pages: Extent,
    /// One a page of the pool.
    pub(super) frames: Vec<Option<Pfn>>,
}

/// A brick that did not get its place's frames.
#[derive(Debug)]
pub(super) struct Odd {
    pub(super) frames: Vec<Option<Pfn>>,
    pub(super) brick: Brick,
}

impl ClosedBlock {
    /// Takes whole bricks, zeroed, as [`Reserve::alloc`] does. Rounds pages and alignment up to
    /// bricks.
    ///
    /// # Errors
    /// As [`Reserve::alloc`]; [`ReserveError::NoBricks`] if the memory is not of bricks.
    pub fn of(reserve: &Reserve, request: impl Into<Request>) -> Result<Self, ReserveError> {
        let inner = reserve.inner.get()?;
        let (_, size) = inner.bricks()?;
        let begin = inner.busy.clock.now();
        let extent =
            inner.grant_timed(request.into().rounded_to_bricks(pages_in(size.each)), begin)?;
        Self::taken(&reserve.inner, extent)
    }

    /// Sets whole bricks aside for [`ClosedBlock::of_promise`], as [`Reserve::promise`] does.
    ///
    /// # Errors
    /// As [`Reserve::promise`]; [`ReserveError::NoBricks`].
    pub fn promise(
        reserve: &Reserve,
        request: impl Into<Request>,
    ) -> Result<Promise, ReserveError> {
        let each = Self::brick(reserve)?.get();
        reserve.promise(request.into().rounded_to_bricks(each))
    }

    /// Takes the bricks of [`ClosedBlock::promise`].
    ///
    /// # Errors
    /// As [`Promise::take`]; [`ReserveError::NoBricks`].
    pub fn of_promise(mut promise: Promise) -> Result<Self, ReserveError> {
        let inner = promise.inner.clone();
        let each = pages_in(inner.get()?.bricks()?.1.each);
        let is_whole = |extent: &Extent| extent.start() % each + extent.len() % each == 0;
        let extent = promise.extent.filter(is_whole).ok_or(ReserveError::NoBricks)?;
        inner.get()?.recall(extent, true, true)?;
        promise.extent = None;
        Self::taken(&inner, extent)
    }

    /// Returns the pages of a brick.
    ///
    /// # Errors
    /// [`ReserveError::NoBricks`], [`ReserveError::Forked`].
    pub fn brick(reserve: &Reserve) -> Result<Pages, ReserveError> {
        Ok(Pages::new(pages_in(reserve.inner.get()?.bricks()?.1.each)))
    }

    /// Returns the base pages of a page of the pool.
    ///
    /// # Errors
    /// As [`ClosedBlock::brick`].
    pub fn page(reserve: &Reserve) -> Result<Pages, ReserveError> {
        Ok(Pages::new(pages_in(reserve.inner.get()?.bricks()?.1.page)))
    }

    /// Returns the number of pages that are in no block and no promise. A promise counts until its
    /// block exists.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn free(reserve: &Reserve) -> Result<Pages, ReserveError> {
        Ok(reserve.inner.get()?.free_pages())
    }

    fn taken(inner: &Shared<ReserveCore>, extent: Extent) -> Result<Self, ReserveError> {
        let core = inner.get()?;
        let (memory, size) = core.bricks()?;
        match memory.take_out(extent, size) {
            Ok(all) => {
                let (places, bricks) = all.into_iter().unzip();
                Ok(Self { inner: inner.clone(), places, bricks, is_given: false, keeping: None })
            }
            Err(why) => {
                core.give_back(extent);
                Err(why.into())
            }
        }
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.places.iter().map(|place| place.pages.len()).sum())
    }

    /// Returns the first page's place in the reserve.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.places.first().map_or(0, |place| place.pages.start())
    }

    /// Returns the first frame of each page of the pool, if visible.
    pub fn frames(&self) -> impl Iterator<Item = Option<Pfn>> + '_ {
        self.places.iter().flat_map(|place| place.frames.iter().copied())
    }

    /// Returns true if the frames are adjacent, or the block is a page of the pool.
    #[must_use]
    pub fn is_run(&self) -> bool {
        let frames: Vec<Option<Pfn>> = self.frames().collect();
        let each = Pages::new(self.pages().get() / (frames.len() as u64).max(1));
        frames.windows(2).all(|two| two[0].is_some_and(|pfn| Some(pfn.plus(each)) == two[1]))
    }

    /// Returns the files of the bricks, to be sent to another process.
    pub fn give(&mut self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.is_given = true;
        self.bricks.iter().map(AsFd::as_fd)
    }

    /// Moves the memory into one file, which takes as long as zeroing it.
    ///
    /// # Errors
    /// If the kernel refuses the file, or another process took a page of the pool. The error has
    /// the block in two parts to give back: bricks that nothing happened to, and bricks that were
    /// cut. The second keeps the pages of its bricks in the pool.
    pub fn of_one_file(mut self) -> Result<Self, (ReserveError, Vec<Self>)> {
        let [first, _, ..] = &self.bricks[..] else { return Ok(self) };
        let page = first.page();
        // Without the lock, the kernel may take cut pages out of the pool.
        let keeping = match Keeping::of(page, PoolLock::PATIENCE) {
            Ok(keeping) => keeping,
            Err(why) => return Err((why.into(), vec![self])),
        };
        match join(&self.bricks, page) {
            Ok((brick, frames)) => {
                (self.bricks, self.is_given) = (vec![brick], true);
                let mut frames = frames.into_iter();
                for frame in self.places.iter_mut().flat_map(|place| &mut place.frames) {
                    *frame = frames.next().flatten();
                }
                Ok(self)
            }
            Err((why, whole)) => {
                let mut cut = self.split_off(whole);
                (cut.is_given, cut.keeping) = (true, keeping);
                Err((why.into(), vec![self, cut]))
            }
        }
    }

    /// Leaves the first bricks in this block. Returns the others.
    fn split_off(&mut self, first: usize) -> Self {
        Self {
            inner: self.inner.clone(),
            places: self.places.split_off(first),
            bricks: self.bricks.split_off(first),
            is_given: self.is_given,
            keeping: self.keeping.clone(),
        }
    }

    /// Joins blocks of one reserve, in their order.
    ///
    /// # Panics
    /// If there is no block.
    #[must_use]
    pub fn concat(blocks: Vec<Self>) -> Self {
        let mut blocks = blocks.into_iter();
        let mut all = blocks.next().expect("at least one block");
        for mut block in blocks {
            all.places.append(&mut block.places);
            all.bricks.append(&mut block.bricks);
            all.is_given |= block.is_given;
            all.keeping = all.keeping.take().or(block.keeping.take());
        }
        all
    }

    /// Divides the block into blocks of one brick.
    #[must_use]
    pub fn divided(mut self) -> Vec<Self> {
        let (inner, is_given, keeping) = (self.inner.clone(), self.is_given, self.keeping.clone());
        let one = |(place, brick)| Self {
            inner: inner.clone(),
            places: vec![place],
            bricks: vec![brick],
            is_given,
            keeping: keeping.clone(),
        };
        if self.bricks.len() < self.places.len() {
            return vec![self];
        }
        let places = std::mem::take(&mut self.places);
        places.into_iter().zip(std::mem::take(&mut self.bricks)).map(one).collect()
    }

    /// Ends all holders' access now, and returns true, unless another process changes the pool. The
    /// memory comes back as without this call.
    pub fn cut(blocks: &mut [Self]) -> bool {
        let Some(page) = blocks.iter().flat_map(|it| &it.bricks).map(Brick::page).next() else {
            return true;
        };
        let keeping = Keeping::of(page, AT_ONCE);
        if let Ok(keeping) = &keeping {
            cut(blocks.iter().flat_map(|block| &block.bricks));
            blocks.iter_mut().for_each(|block| block.keeping.clone_from(keeping));
        }
        keeping.is_ok()
    }

    /// Leaves the memory to its holders. Its pages leave the reserve.
    pub fn leave(mut self) {
        let places = std::mem::take(&mut self.places);
        if let Ok((inner, (memory, _))) = self.inner.get().and_then(|it| Ok((it, it.bricks()?))) {
            places.iter().for_each(|place| _ = inner.lose(memory, place.pages));
        }
    }

    /// Gives blocks of one reserve back, faster than one by one. Returns the pages whose frames did
    /// not come back.
    pub fn reopen(mut blocks: Vec<Self>) -> LostPages {
        blocks.first().map(|block| block.inner.clone()).map_or_else(LostPages::default, |inner| {
            let pages = inner.get().map_or_else(|_| Vec::new(), |it| it.reopen(&mut blocks));
            LostPages { inner: Some(inner), pages }
        })
    }
}

fn pages_in(size: PageSize) -> u64 {
    size.bytes().pages_down(page_size()).get()
}

impl Drop for ClosedBlock {
    fn drop(&mut self) {
        if self.places.is_empty() {
            return;
        }
        let inner = self.inner.clone();
        let pages = inner.get().map(|inner| inner.reopen(std::slice::from_mut(self)));
        drop(pages.map(|pages| LostPages { inner: Some(self.inner.clone()), pages }));
    }
}

/// [`LostPages`] leave the reserve when dropped. The drop waits while the reserve is resized, so a
/// holder of cut blocks, which keep the pool's lock, passes it to another thread.
#[derive(Debug, Default)]
pub struct LostPages {
    inner: Option<Shared<ReserveCore>>,
    pages: Vec<Extent>,
}

impl LostPages {
    /// Returns the number of pages.
    #[must_use]
    pub fn count(&self) -> Pages {
        Pages::new(self.pages.iter().map(|pages| pages.len()).sum())
    }

    /// Takes the pages out of the reserve. Returns the number that left.
    pub fn leave(&mut self) -> Pages {
        let pages = std::mem::take(&mut self.pages);
        let core = self.inner.as_ref().and_then(|inner| inner.get().ok());
        let Some((core, Ok((memory, _)))) = core.map(|core| (core, core.bricks())) else {
            return Pages::ZERO;
        };
        pages
            .into_iter()
            .map(|pages| core.lose(memory, pages))
            .fold(Pages::ZERO, |sum, it| sum + it)
    }
}

impl Drop for LostPages {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Frees the frames of closed places that are in bricks of others. [`recast`] fills the last place
/// first, and a pool hands out first what was freed last.
fn free_frames_of(memory: &Memory, closed: &[Extent], aside: &mut Vec<Odd>) {
    let Some(page) = aside.first().map(|odd| odd.brick.page()) else { return };
    let wanted = closed.iter().flat_map(|pages| memory.frames(*pages, page)).flatten();
    let ranks: BTreeMap<Pfn, usize> = wanted.zip(0..).collect();
    let mut found = Vec::new();
    for (at, odd) in aside.iter_mut().enumerate() {
        for (nth, frame) in odd.frames.iter_mut().enumerate() {
            if let Some(rank) = frame.and_then(|pfn| ranks.get(&pfn)) {
                found.push((*rank, at, nth as u64));
                *frame = None;
            }
        }
    }
    found.sort_unstable();
    punch(found.into_iter().map(|(_, at, nth)| (&aside[at].brick, nth)));
    aside.retain(|odd| odd.frames.iter().any(Option::is_some));
}

impl ReserveCore {
    fn bricks(&self) -> Result<(&Memory, BrickSize), ReserveError> {
        let memory = self.memory.as_ref().ok_or(ReserveError::NoBricks)?;
        Ok((memory, memory.brick().ok_or(ReserveError::NoBricks)?))
    }

    /// Returns the pages that remain closed.
    fn reopen(&self, blocks: &mut [ClosedBlock]) -> Vec<Extent> {
        let Ok((memory, BrickSize { page, .. })) = self.bricks() else { return Vec::new() };
        let of_cuts: Vec<_> = blocks.iter_mut().filter_map(|it| it.keeping.take()).collect();
        let (mut given, mut old, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for block in blocks {
            let places = std::mem::take(&mut block.places).into_iter().map(|place| place.pages);
            let bricks = std::mem::take(&mut block.bricks);
            match block.is_given {
                true => {
                    given.extend(places);
                    old.extend(bricks);
                }
                false => kept.extend(places.zip(bricks.into_iter().map(Some))),
            }
        }
        // Bricks of other frames, held so that the pool hands out what it got before them.
        let mut aside = Vec::new();
        let mut closed = self.put_back(memory, (kept, true), &mut aside);
        // Bricks of other frames are freed at the end, when the pool may still keep them.
        let _keeping = (!old.is_empty()).then(|| Keeping::of(page, PoolLock::PATIENCE));
        let lens = given.iter().map(|pages| Pages::new(pages.len()).bytes(page_size()));
        let new = recast(&old, page, lens).into_iter().map(Result::ok);
        drop(old);
        closed.extend(self.put_back(memory, (given.into_iter().zip(new), false), &mut aside));
        for _ in 0..TRIES {
            if closed.is_empty() {
                break;
            }
            // The kernel frees a page late if its holder is just unmapping it.
            std::thread::sleep(PAUSE);
            free_frames_of(memory, &closed, &mut aside);
            let lens = closed.iter().map(|pages| Pages::new(pages.len()).bytes(page_size()));
            let new = recast(&[], page, lens).into_iter().map(Result::ok);
            closed = self.put_back(memory, (closed.into_iter().zip(new), false), &mut aside);
        }
        drop((aside, of_cuts));
        closed
    }

    /// Opens pages with their own bricks, or with new ones of their frames. Puts bricks of other
    /// frames `aside`, and returns the pages that remain closed.
    fn put_back(
        &self,
        memory: &Memory,
        (all, are_same): (impl IntoIterator<Item = (Extent, Option<Brick>)>, bool),
        aside: &mut Vec<Odd>,
    ) -> Vec<Extent> {
        let open = |pages| {
            self.lent().give_back_zeroed(&pages_of(pages));
            self.free_positions(pages);
        };
        let mut closed = Vec::new();
        for (pages, brick) in all {
            match brick.map(|brick| memory.put_in(pages, brick, are_same)) {
                Some(Ok(None)) => open(pages),
                Some(Ok(Some(odd))) => {
                    aside.push(odd);
                    closed.push(pages);
                }
                Some(Err(_)) | None => closed.push(pages),
            }
        }
        closed.retain(|pages| {
            let is_here = |odd: &Odd| odd.frames == memory.frames(*pages, odd.brick.page());
            let found = aside.iter().position(is_here).map(|at| aside.swap_remove(at).brick);
            let is_back =
                found.is_some_and(|brick| matches!(memory.put_in(*pages, brick, false), Ok(None)));
            if is_back {
                open(*pages);
            }
            !is_back
        });
        closed
    }

    /// Returns the pages that left. The last part of the reserve stays closed, because a reserve is
    /// never empty.
    fn lose(&self, memory: &Memory, pages: Extent) -> Pages {
        let Ok(_turn) = memory.turn() else { return Pages::ZERO };
        if memory.present().get() <= pages.len() || memory.vacate(pages).is_err() {
            return Pages::ZERO;
        }
        let (run, granule) = (pages_of(pages), self.lent().granule_pages());
        self.lent().depart(run.start / granule..run.end / granule);
        self.lender().set_end(memory.end());
        Pages::new(pages.len())
    }
}

#[cfg(test)]
mod tests;
