//! [`Packed`]: objects of a compressed pool on pages that the reserve lends.
//!
//! Objects come into zspages in ordinary memory, the *staging*. When that is full, zspages are
//! *sealed*: their pages are copied to lent pages, each claimed and filled like a page of the page
//! cache, all in one granule, and their own pages serve the next objects. Objects in lent pages
//! are second class. A recall knows nothing of them: a page is lost when its [`PageUse`] is over,
//! which a reader sees when it copies the bytes out, and the *sweep* sees where nobody reads.
//! Objects with bytes in a lost page are gone then; the others of the zspage stay.
//!
//! Key words of a page: {the pool's number with the highest bit set, zspage and page, the number
//! of the seal, 0}. They and the use are compared before the copy, and the use after it, so bytes
//! are those of that page of that zspage or are not used. Nothing is decoded in place.
//!
//! A sealed zspage stays what it is until its last object is gone; then its pages are dropped. No
//! lock of its own: a zspage is taken out of its class's lists before it is copied. Cost: sealing
//! is a claim and a copy a page; reading is one or two copies of parts of pages.

mod lend;
mod refs;
mod sweep;

use std::cell::RefCell;

use crate::sync::{Backoff, MappedWord, Ordering};
use crate::units::{PageSize, Pages};
use crate::zpool::{self, Fullness, Pinned, CLASSES_MAX};

use super::lent::{Lent, Meta};
use super::page_word::PageUse;
use super::stats::{Counter, Counts};
use super::tenant::Tenant;
use super::Inner;
use refs::{Refs, PAGES_MAX};

/// Of a first key word: the page is one of a zspage.
const PACKED: u64 = 1 << 63;
const ZSPAGE_AT: u32 = 8;
const _: () = assert!(PAGES_MAX <= 1 << ZSPAGE_AT);
/// Parts of the staging that are free for what comes while zspages are sealed; and as many are
/// sealed at a time.
const PARTS: u64 = 8;
/// How often the end of a pool looks again for pages that first class keeps from being dropped.
const DROPS_MAX: u32 = 64;
/// Pages of the staging at least.
const STAGED_MIN: u64 = 4 * PAGES_MAX as u64;

/// What happens to the other objects of a zspage when one of its pages is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// They stay, and come together with others where few are left.
    Stays,
    /// They go too: of a cache they are about as old as what went.
    Goes,
}

/// Whether a page with these key words is one of a zspage.
#[inline]
pub(super) fn is_packed(meta: &Meta) -> bool {
    meta[0] & PACKED != 0
}

/// What lent pages are had from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    pub(super) lent: &'a Lent,
    pub(super) tenant: &'a Tenant,
    pub(super) counts: &'a Counts,
}

impl Inner {
    pub(super) fn ground(&self) -> Ground<'_> {
        Ground { lent: self.lent(), tenant: self.tenant(), counts: self.counts() }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) pool: zpool::Pool,
    refs: Refs,
    /// The first key word.
    name: u64,
    /// Pages of zspages in ordinary memory at most.
    staging: u64,
    rest: Rest,
    seals: MappedWord,
    /// The class at which the search for a zspage to seal goes on.
    next_class: MappedWord,
    /// The zspage at which the sweep goes on.
    hand: MappedWord,
    pub(super) counters: Counters,
}

/// What is counted beside the pool's own statistics. Relaxed.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sealed: MappedWord,
    pub(super) lost: MappedWord,
    pub(super) refused: MappedWord,
    /// Objects that came back to the staging.
    pub(super) taken_out: MappedWord,
    /// Lent pages that were moved before first class took them.
    pub(super) moved_pages: MappedWord,
    /// Lent pages that were dropped with their zspage.
    ended_pages: MappedWord,
    /// Lent pages that were to be dropped while first class was at their granule. The hand finds
    /// them, or the end of the pool.
    left_pages: MappedWord,
}

/// Pages of a zspage that are lost, a bit each.
#[derive(Debug)]
struct LostPages(u32);

impl Packed {
    /// With at most `staging` pages of ordinary memory for objects; `options` are the pool's,
    /// `number` is no other pool's of the reserve.
    pub(super) fn new(
        number: u64,
        options: zpool::Options,
        staging: Pages,
        page: PageSize,
        rest: Rest,
    ) -> Result<Self, zpool::Error> {
        let staging = staging.get().max(STAGED_MIN);
        let pool = options.lend(Pages::new(staging / PARTS)).build()?;
        let refs = Refs::new(pool.objects.memory.zspages.most(), page)?;
        Ok(Self {
            pool,
            refs,
            name: PACKED | number,
            staging,
            rest,
            seals: MappedWord::new(1),
            next_class: MappedWord::new(0),
            hand: MappedWord::new(0),
            counters: Counters::default(),
        })
    }

    /// In which granules each sealed zspage has pages.
    #[cfg(all(test, not(loom)))]
    pub(super) fn granules(&self, lent: &Lent) -> Vec<Vec<usize>> {
        let (_, end) = self.pool.objects.memory.zspages.made();
        let of = |zspage| (0..PAGES_MAX).filter_map(move |nth| self.refs.at(zspage, nth));
        let granules =
            |zspage| -> Vec<usize> { of(zspage).map(|at| lent.granule_of(at.page)).collect() };
        (0..end).map(granules).filter(|of| !of.is_empty()).collect()
    }

    /// As if first class had kept each page from being dropped as its zspage ended.
    #[cfg(all(test, not(loom)))]
    pub(super) fn leave_all(&self) {
        let (_, end) = self.pool.objects.memory.zspages.made();
        let pages: usize = (0..end).map(|zspage| self.refs.take(zspage).count()).sum();
        self.counters.left_pages.fetch_add(pages as u64, Ordering::Relaxed);
    }

    fn meta(&self, zspage: u32, nth: usize, seal: u64) -> Meta {
        [self.name, u64::from(zspage) << ZSPAGE_AT | nth as u64, seal, 0]
    }

    /// Whether there may be room for an object: what is staged can be sealed.
    #[inline]
    pub(super) fn has_room(&self, ground: Ground<'_>) -> bool {
        if self.pool.objects.memory.pages.used() < self.staging {
            return true;
        }
        self.seal_some(ground);
        let has_room = self.pool.objects.memory.pages.used() < self.staging;
        if !has_room {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Seals zspages if the staging is nearly full. After each call that adds or removes.
    #[inline]
    pub(super) fn settle(&self, ground: Ground<'_>) {
        if self.pool.objects.memory.pages.used() > self.staging - self.staging / PARTS {
            self.seal_some(ground);
        }
        self.let_go(ground);
    }

    /// Drops the pages of zspages that ended.
    #[inline]
    fn let_go(&self, ground: Ground<'_>) {
        let memory = &self.pool.objects.memory;
        for zspage in memory.take_ended() {
            self.drop_pages(ground, zspage);
            memory.zspages.drop_number(&memory.account, zspage);
        }
    }

    fn drop_pages(&self, ground: Ground<'_>, zspage: u32) {
        let mut pages = 0;
        for at in self.refs.take(zspage) {
            pages += u64::from(self.drop_page(ground, at));
        }
        self.counters.ended_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Seals zspages until so many pages of the staging are free as are meant to be, or no more
    /// can be lent: first those that are full, of any class, then the fullest.
    #[cold]
    fn seal_some(&self, ground: Ground<'_>) {
        let memory = &self.pool.objects.memory;
        self.pool.objects.settle();
        let enough = self.staging - 2 * (self.staging / PARTS);
        for fullness in [Fullness::Full, Fullness::Fullest] {
            let mut without = 0;
            while without < CLASSES_MAX && memory.pages.used() > enough {
                let class = self.next_class.load(Ordering::Relaxed) as u32 % CLASSES_MAX;
                let Some(sealing) = self.pool.objects.begin_seal(class, fullness) else {
                    without += 1;
                    self.next_class.store((class + 1).into(), Ordering::Relaxed);
                    continue;
                };
                if !self.seal(ground, sealing) {
                    return;
                }
                without = 0;
                if fullness == Fullness::Fullest {
                    self.next_class.store((class + 1).into(), Ordering::Relaxed);
                }
            }
        }
        memory.pages.trim(&memory.account);
    }

    /// Copies the stored bytes of a pinned object of a sealed zspage to `buf`, which is as long.
    fn copy_sealed(
        &self,
        ground: Ground<'_>,
        pinned: &Pinned,
        buf: &mut [u8],
    ) -> Result<(), LostPages> {
        let page_bytes = self.pool.page.bytes().as_usize();
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
                if ground.lent.read_part(at, &meta, offset, part) {
                    ground.tenant.touch(at.page);
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

    /// Ends the objects that have bytes in lost pages of a zspage of that seal; how many.
    fn lose(&self, zspage: u32, seal: u64, lost: &LostPages) {
        let is_same = || self.refs.seal(zspage) == seal;
        let lost = if self.rest == Rest::Goes { u32::MAX } else { lost.0 };
        let objects = self.pool.objects.lose(zspage, lost, is_same);
        self.counters.lost.fetch_add(objects as u64, Ordering::Relaxed);
    }

    /// Gives the stored bytes of a pinned object to `then`, in place or copied, and ends the pin;
    /// `None`, and the object is no more, if they are lost.
    #[inline]
    pub(super) fn with_stored<R>(
        &self,
        ground: Ground<'_>,
        pinned: &Pinned,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.with_some(ground, pinned, pinned.entry.len(), then)
    }

    #[inline]
    fn with_some<R>(
        &self,
        ground: Ground<'_>,
        pinned: &Pinned,
        len: usize,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        if !pinned.is_sealed {
            let done = self.pool.objects.with_bytes(pinned, |bytes| then(&bytes[..len]));
            self.pool.objects.unpin(pinned);
            return Some(done);
        }
        with_buffer(len, |buf| {
            let copied = self.copy_sealed(ground, pinned, buf);
            if let Err(lost) = &copied {
                let zspage = pinned.entry.place().zspage;
                self.lose(zspage, self.refs.seal(zspage), lost);
            }
            self.pool.objects.unpin(pinned);
            if copied.is_err() {
                self.pool.objects.settle();
                self.let_go(ground);
                return None;
            }
            Some(then(buf))
        })
    }

    /// As [`Packed::with_stored`], of the first `most` bytes.
    pub(super) fn with_head<R>(
        &self,
        ground: Ground<'_>,
        pinned: &Pinned,
        most: usize,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.with_some(ground, pinned, pinned.entry.len().min(most), then)
    }

    /// Drops all lent pages, before the pool ends. Looks at each page of the reserve where one was
    /// left.
    pub(super) fn drop_all(&self, ground: Ground<'_>) {
        let (_, end) = self.pool.objects.memory.zspages.made();
        for zspage in 0..end {
            if self.pool.objects.memory.zspages.about(zspage).is_sealed {
                self.drop_pages(ground, zspage);
            }
        }
        self.let_go(ground);
        let mut backoff = Backoff::default();
        for _ in 0..DROPS_MAX {
            if self.counters.left_pages.swap(0, Ordering::Relaxed) == 0 {
                return;
            }
            self.drop_left(ground);
            backoff.wait();
        }
    }

    /// Drops what is left of this pool in the reserve.
    #[cold]
    fn drop_left(&self, ground: Ground<'_>) {
        let Ground { lent, .. } = ground;
        for granule in (0..lent.granules()).filter(|granule| lent.granule(*granule).live() > 0) {
            let first = granule * lent.granule_pages();
            for page in first..first + lent.granule_pages() {
                if let Some((word, ..)) = lent.holds(page, |meta| self.is_of(meta)) {
                    self.drop_page(ground, word.use_of(page));
                }
            }
        }
    }

    /// Drops a lent page; whether it was there.
    fn drop_page(&self, ground: Ground<'_>, at: PageUse) -> bool {
        let dropped = ground.lent.discard_use(at);
        if dropped {
            ground.counts.add(Counter::InvalidatedPages, 1);
        } else if ground.lent.holds_use(at, |_| true).is_some() {
            self.counters.left_pages.fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    /// Bytes of tables beside the pool's own.
    pub(super) fn held_bytes(&self) -> u64 {
        self.refs.held_bytes() + size_of::<Self>() as u64
    }

    /// Objects that were found lost.
    pub(super) fn lost(&self) -> u64 {
        self.counters.lost.load(Ordering::Relaxed)
    }

    /// Bytes that objects may take in ordinary memory.
    pub(super) fn staging(&self) -> Pages {
        Pages::new(self.staging)
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `len` bytes, kept by the thread; contents unspecified.
fn with_buffer<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // In a destructor of the thread's there is none any more.
    let mut buffer = BUFFER.try_with(RefCell::take).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let done = work(&mut buffer[..len]);
    let _ = BUFFER.try_with(|kept| kept.replace(buffer));
    done
}
