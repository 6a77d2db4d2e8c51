//! [`Packed`] keeps objects of a compressed pool on lent pages.
//!
//! New objects go to zspages in ordinary memory, the *staging*. When the staging is nearly full,
//! zspages are *sealed*: each is copied to lent pages of one granule. A page is lost when a claim
//! or recall ends its [`PageUse`]. A read or the *sweep* finds the loss.
//!
//! Each lent page has *key words*: {the pool's number with the highest bit set, zspage and page,
//! number of the seal, 0}. A read checks the key words before the copy, and the [`PageUse`] before
//! and after, so wrong bytes are never used.
//!
//! A zspage stays sealed until its last object ends. No insert finds a sealed zspage, so reads copy
//! objects out without a lock.

mod lend;
mod refs;
mod sweep;

use crate::zpool::internal::{lend, with_buffer, Pinned, Staging};
use crate::zpool::{self, AtLimit, Codec, ObjectPool, TableChoice};
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::units::{Bytes, PageSize, Pages};

use super::lender::{Lender, PACKED};
use super::lent::Meta;
use super::stats::Counter;
use super::words::PageUse;
pub(super) use lend::Movers;
use refs::{Refs, PAGES_MAX};

const ZSPAGE_AT: u32 = 8;
const _: () = assert!(PAGES_MAX <= 1 << ZSPAGE_AT);
const ROOM_PER_STAGED: u64 = 64;
const TABLES: Bytes = Bytes::mib(16);
/// Parts of the staging (ordinary memory). With less than one part free, zspages move to lent pages
/// until two parts are free.
const PARTS: u64 = 8;
const STAGED_MIN: u64 = 4 * PAGES_MAX as u64;

/// [`Rest`] is the fate of the other objects of a zspage with a lost page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The objects stay. Once few are left, a sweep or compaction moves them to ordinary memory.
    Stays,
    /// The objects are dropped, because in a cache they are about as old as the lost ones.
    Goes,
}

#[derive(Debug)]
pub(super) struct Packed {
    pub(super) staging: Staging,
    refs: Refs,
    name: u64,
    staged_max: u64,
    page: PageSize,
    rest: Rest,
    seals: MappedWord,
    hand: MappedWord,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sealed: MappedWord,
    pub(super) lost: MappedWord,
    pub(super) refused: MappedWord,
    pub(super) taken_out: MappedWord,
    pub(super) moved_pages: MappedWord,
    ended_pages: MappedWord,
}

/// Lost pages, one bit a page.
#[derive(Debug)]
struct LostPages(u32);

impl Packed {
    pub(super) fn new(
        lender: &Lender,
        room: Bytes,
        staging: Option<Bytes>,
        codec: Codec,
        rest: Rest,
    ) -> Result<Self, zpool::Error> {
        let page = lender.lent().frames().page();
        let staging = staging.unwrap_or(Bytes::new(room.get() / ROOM_PER_STAGED)).min(room);
        let staged_max = staging.pages_up(page).get().max(STAGED_MIN);
        let options = ObjectPool::options()
            .codec(codec)
            .table(TableChoice::BySize)
            .at_limit(AtLimit::Refuse)
            .limit(room + staging + TABLES);
        let staging = Staging::new(lend(options, Pages::new(staged_max / PARTS)))?;
        let refs = Refs::new(staging.zspages_max(), page)?;
        Ok(Self {
            staging,
            refs,
            name: PACKED | lender.number(),
            staged_max,
            page,
            rest,
            seals: MappedWord::new(1),
            hand: MappedWord::new(0),
            counters: Counters::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn granules(&self, lender: &Lender) -> Vec<Vec<usize>> {
        let end = self.staging.zspages_end();
        let of = |zspage| (0..PAGES_MAX).filter_map(move |nth| self.refs.at(zspage, nth));
        let granules = |zspage| -> Vec<usize> {
            of(zspage).map(|at| lender.lent().granule_of(at.page)).collect()
        };
        (0..end).map(granules).filter(|of| !of.is_empty()).collect()
    }

    fn meta(&self, zspage: u32, nth: usize, seal: u64) -> Meta {
        [self.name, u64::from(zspage) << ZSPAGE_AT | nth as u64, seal, 0]
    }

    /// Seals zspages if needed. Returns false if the staging stays full.
    #[inline]
    pub(super) fn has_room(&self, lender: &Lender) -> bool {
        if self.staging.used_pages() < self.staged_max {
            return true;
        }
        self.seal_some(lender);
        let has_room = self.staging.used_pages() < self.staged_max;
        if !has_room {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Must follow each insert or removal.
    #[inline]
    pub(super) fn settle(&self, lender: &Lender) {
        if self.staging.used_pages() > self.staged_max - self.staged_max / PARTS {
            self.seal_some(lender);
        }
        self.let_go(lender);
    }

    #[inline]
    fn let_go(&self, lender: &Lender) {
        for zspage in self.staging.take_ended() {
            self.drop_pages(lender, zspage);
            self.staging.drop_number(zspage);
        }
    }

    fn drop_pages(&self, lender: &Lender, zspage: u32) {
        let mut pages = 0;
        for at in self.refs.take(zspage) {
            pages += u64::from(self.drop_page(lender, at));
        }
        self.counters.ended_pages.fetch_add(pages, Ordering::Relaxed);
    }

    #[cold]
    fn seal_some(&self, lender: &Lender) {
        self.staging.settle();
        let enough = self.staged_max - 2 * (self.staged_max / PARTS);
        for sealing in self.staging.to_seal(enough) {
            if !self.seal(lender, sealing) {
                return;
            }
        }
        self.staging.trim();
    }

    fn copy_sealed(
        &self,
        lender: &Lender,
        pinned: &Pinned,
        buf: &mut [u8],
    ) -> Result<(), LostPages> {
        let page_bytes = self.page.bytes().as_usize();
        let zspage = pinned.entry.place().zspage;
        let seal = self.refs.seal(zspage);
        let (mut from, mut done) = (pinned.offset(), 0);
        while done < buf.len() {
            let (nth, offset) = (from / page_bytes, from % page_bytes);
            let len = (page_bytes - offset).min(buf.len() - done);
            let meta = self.meta(zspage, nth, seal);
            loop {
                let at = self.refs.at(zspage, nth).ok_or(LostPages(1 << nth))?;
                let part = &mut buf[done..done + len];
                if lender.lent().read_part(at, &meta, offset, part) {
                    lender.touch(at.page);
                    break;
                }
                if self.refs.at(zspage, nth) == Some(at) {
                    return Err(LostPages(1 << nth));
                }
            }
            (from, done) = (from + len, done + len);
        }
        Ok(())
    }

    fn lose(&self, zspage: u32, seal: u64, lost: &LostPages) {
        let is_same = || self.refs.seal(zspage) == seal;
        let lost = if self.rest == Rest::Goes { u32::MAX } else { lost.0 };
        let objects = self.staging.lose(zspage, lost, is_same);
        self.counters.lost.fetch_add(objects as u64, Ordering::Relaxed);
    }

    /// Calls `then` with the stored bytes, and unpins the object. If the object is lost, ends it
    /// and returns `None`.
    #[inline]
    pub(super) fn with_stored<R>(
        &self,
        lender: &Lender,
        pinned: &Pinned,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.with_head(lender, pinned, pinned.entry.len(), then)
    }

    #[inline]
    pub(super) fn with_head<R>(
        &self,
        lender: &Lender,
        pinned: &Pinned,
        most: usize,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let len = pinned.entry.len().min(most);
        if !pinned.is_sealed {
            let done = self.staging.with_bytes(pinned, |bytes| then(&bytes[..len]));
            self.staging.unpin(pinned);
            return Some(done);
        }
        with_buffer(len, |buf| {
            let copied = self.copy_sealed(lender, pinned, buf);
            if let Err(lost) = &copied {
                let zspage = pinned.entry.place().zspage;
                self.lose(zspage, self.refs.seal(zspage), lost);
            }
            self.staging.unpin(pinned);
            if copied.is_err() {
                self.staging.settle();
                self.let_go(lender);
                return None;
            }
            Some(then(buf))
        })
    }

    pub(super) fn drop_all(&self, lender: &Lender) {
        for zspage in 0..self.staging.zspages_end() {
            if self.staging.is_sealed(zspage) {
                self.drop_pages(lender, zspage);
            }
        }
        self.let_go(lender);
    }

    fn drop_page(&self, lender: &Lender, at: PageUse) -> bool {
        lender.drop_use(at, Counter::InvalidatedPages)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.refs.held_bytes() + size_of::<Self>() as u64
    }

    pub(super) fn lost(&self) -> u64 {
        self.counters.lost.load(Ordering::Relaxed)
    }

    pub(super) fn staged_max(&self) -> Pages {
        Pages::new(self.staged_max)
    }
}
