//! [`Packed::seal`] copies zspages to lent pages. [`Movers`] move them out of runs that first class
//! takes.
//!
//! All pages of a zspage go to one granule of 2 MiB. If the next claimed page is in another
//! granule, the copy starts again there.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::{with_buffer, Packed, PAGES_MAX, ZSPAGE_AT};
use crate::reserve::lender::{is_packed, Claimed, First, Lender};
use crate::reserve::lent::{Meta, NotFilled};
use crate::reserve::stats::Counter;
use crate::reserve::words::PageUse;
use crate::zpool::internal::Sealing;
use glebe_os::internal::sync::{write, Ordering, RwLock};

const TRIES: usize = 4;
const SWEPT: u64 = 4;

struct Copied<'a> {
    zspage: u32,
    seal: u64,
    pages: Vec<&'a [u8]>,
}

/// Maximum pages that `Packed::move_out` examines for one target page, while first class waits.
const LOOKED_AT_MAX: u64 = 2048;

impl Packed {
    pub(super) fn seal(&self, lender: &Lender, sealing: Sealing<'_>) -> bool {
        let zspage = sealing.zspage();
        if self.refs.prepare(zspage).is_err() {
            return false;
        }
        let seal = self.seals.fetch_add(1, Ordering::Relaxed);
        let pages = (0..sealing.pages()).map(|nth| sealing.page(nth)).collect();
        let bytes = Copied { zspage, seal, pages };
        let Some(uses) = self.lend(lender, &bytes, || lender.claim(First::GivenBack)) else {
            return false;
        };
        self.refs.set(zspage, seal, &uses);
        sealing.finish();
        self.counters.sealed.fetch_add(1, Ordering::Relaxed);
        self.sweep(lender, SWEPT);
        true
    }

    fn lend(
        &self,
        lender: &Lender,
        bytes: &Copied<'_>,
        claim: impl Fn() -> Option<Claimed>,
    ) -> Option<Vec<PageUse>> {
        let (mut uses, mut granule, mut tries) = (Vec::with_capacity(bytes.pages.len()), None, 0);
        while uses.len() < bytes.pages.len() && tries < TRIES {
            let Some(Claimed { claim, .. }) = claim() else { break };
            if claim.evicted {
                lender.counts().add(Counter::Evicted, 1);
            }
            let here = lender.lent().granule_of(claim.page);
            if granule.replace(here) != Some(here) && !uses.is_empty() {
                self.drop_uses(lender, &mut uses);
                tries += 1;
            }
            let nth = uses.len();
            match lender.fill(claim, self.meta(bytes.zspage, nth, bytes.seal), bytes.pages[nth]) {
                Ok(at) => uses.push(at),
                Err(NotFilled::Interrupted) => break,
                Err(NotFilled::Recalled) => {
                    self.drop_uses(lender, &mut uses);
                    tries += 1;
                }
            }
        }
        if uses.len() < bytes.pages.len() {
            self.drop_uses(lender, &mut uses);
            return None;
        }
        Some(uses)
    }

    fn drop_uses(&self, lender: &Lender, uses: &mut Vec<PageUse>) {
        for at in uses.drain(..) {
            self.drop_page(lender, at);
        }
    }

    pub(super) fn is_of(&self, meta: &Meta) -> bool {
        meta[0] == self.name
    }

    /// Moves the zspage of `meta` out of `run`, to pages that are free or hold no objects. Returns
    /// false if it gets no such pages.
    pub(super) fn move_out(&self, lender: &Lender, meta: &Meta, run: &Range<usize>) -> bool {
        let page_bytes = self.page.bytes().as_usize();
        let (zspage, seal) = ((meta[1] >> ZSPAGE_AT) as u32, meta[2]);
        if self.refs.seal(zspage) != seal {
            return true;
        }
        let uses: Vec<PageUse> =
            (0..PAGES_MAX).map_while(|nth| self.refs.at(zspage, nth)).collect();
        let moved = with_buffer(uses.len() * page_bytes, |buf| {
            for (nth, (at, page)) in uses.iter().zip(buf.chunks_exact_mut(page_bytes)).enumerate() {
                if !lender.lent().read(*at, &self.meta(zspage, nth, seal), page) {
                    return Some(Vec::new());
                }
            }
            let bytes = Copied { zspage, seal, pages: buf.chunks_exact(page_bytes).collect() };
            let may = |page: usize, meta: Option<&Meta>| {
                !run.contains(&page) && !meta.is_some_and(is_packed)
            };
            self.lend(lender, &bytes, || lender.claim_where(First::GivenBack, LOOKED_AT_MAX, may))
        });
        let Some(moved) = moved else { return false };
        for (nth, (from, to)) in uses.into_iter().zip(moved).enumerate() {
            if self.refs.exchange(zspage, nth, from, to) {
                self.counters.moved_pages.fetch_add(1, Ordering::Relaxed);
                self.drop_page(lender, from);
            } else {
                self.drop_page(lender, to);
            }
        }
        true
    }
}

#[derive(Debug, Default)]
pub(in crate::reserve) struct Movers(RwLock<Vec<Weak<Packed>>>);

impl Movers {
    pub(in crate::reserve) fn add(&self, packed: &Arc<Packed>) {
        let mut movers = write(&self.0);
        movers.retain(|other| other.strong_count() > 0);
        movers.push(Arc::downgrade(packed));
    }

    /// Moves the zspages in `run` until one finds no target. Moves nothing if another thread adds a
    /// pool, because first class must not wait.
    #[cold]
    pub(in crate::reserve) fn move_out(&self, lender: &Lender, run: &Range<usize>) {
        let alive = match self.0.try_read() {
            Ok(movers) => movers.iter().filter_map(Weak::upgrade).collect::<Vec<_>>(),
            Err(_) => return,
        };
        for page in run.clone() {
            let Some((_, _, meta)) = lender.lent().holds(page) else { continue };
            let Some(mover) = alive.iter().find(|packed| packed.is_of(&meta)) else { continue };
            if !mover.move_out(lender, &meta, run) {
                return;
            }
        }
    }
}
