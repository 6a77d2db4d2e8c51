//! [`Namespace`] copies runs of pages of one object.
//!
//! Page `n` of a run is the object's page `first + n`. Each page is stored and evicted by itself.
//! The last page is padded with zeros.

use super::{
    is_object, with_buffer, Cache, Namespace, PageKey, Put, Rejected, ReserveCore, ReserveError,
    Takes,
};
use crate::reserve::lender::{Lender, DROPPED};
use crate::reserve::stats::Counter;
use glebe_os::internal::sync::Ordering;

const REPAIRS: u32 = 3;
/// Pages of a batch, at most [`DROPPED`]: a thread remembers that many replaced pages for reuse.
const BATCH: usize = 8;
const _: () = assert!(BATCH as u64 <= DROPPED);

type Batch<'b> = [Option<(PageKey, &'b [u8])>; BATCH];

#[derive(Clone, Copy)]
struct Keys<'a> {
    inner: &'a ReserveCore,
    number: u64,
    object: u64,
    first: u64,
}

impl<'a> Keys<'a> {
    fn key(&self, nth: u64) -> PageKey {
        self.inner.cache.key(self.number, self.object, self.first.wrapping_add(nth))
    }

    fn page_bytes(&self) -> usize {
        self.inner.lent().frames().page().bytes().as_usize()
    }

    fn is_there(&self, nth: u64) -> bool {
        self.inner.cache.place_of(self.inner.lender(), &self.key(nth)).is_some()
    }

    fn lost(&self, pages: u64) -> Vec<u64> {
        let lender = self.inner.lender();
        let is_lost = |nth: &u64| match self.inner.cache.place_of(lender, &self.key(*nth)) {
            Some(at) if !is_object(at) => {
                lender.touch(at.page);
                false
            }
            found => found.is_none(),
        };
        (0..pages).filter(is_lost).collect()
    }

    fn count(&self, loaded: u64, is_hit: bool) {
        self.inner.counts().add(Counter::Loaded, loaded);
        if !is_hit {
            self.inner.counts().add(Counter::Missed, 1);
        }
    }

    /// Makes each key one part early, to prefetch its index bucket.
    fn zip<T: 'a>(
        self,
        parts: impl Iterator<Item = T> + 'a,
    ) -> impl Iterator<Item = (PageKey, T)> + 'a {
        let mut next = self.key(0);
        parts.zip(1..).map(move |(part, nth)| (std::mem::replace(&mut next, self.key(nth)), part))
    }
}

impl Cache {
    /// Claims several pages and fills them in address order, to copy neighbours together. With a
    /// codec, or if a recall waits for claimed pages (`Critical::Counted`), claims each page just
    /// before its copy. After a rejection, publishes only pages already filled.
    fn put_batch(&self, lender: &Lender, batch: &Batch<'_>, takes: Takes) -> Put {
        let mut claims = [const { None }; BATCH];
        let waits = lender.lent().critical().counts_writers();
        if batch[1].is_some() && self.packed.is_none() && !waits {
            for (claim, _) in claims.iter_mut().zip(batch.iter().flatten()) {
                *claim = self.claim(lender, takes);
                if claim.is_none() {
                    break;
                }
            }
        }
        claims.sort_unstable_by_key(|claim| claim.as_ref().map_or(usize::MAX, |claim| claim.page));
        let (mut filled, mut nth) = ([None; BATCH], 0);
        let parts = batch.iter().flatten();
        let fills = claims.into_iter().flatten().zip(parts);
        let fills = fills.map(|(claim, (key, page))| (claim, key.meta, *page));
        lender.fill_all(fills, |at| {
            filled[nth] = at;
            nth += 1;
        });
        let mut put = Put::Stored;
        for ((key, page), at) in batch.iter().flatten().zip(filled) {
            let is_in = at.is_some_and(|at| self.publish(lender, key, at));
            if !is_in && put == Put::Stored {
                put = self.put(lender, key, page, takes);
            }
        }
        put
    }
}

impl Namespace {
    fn keys(&self, object: u64, first: u64) -> Result<Keys<'_>, ReserveError> {
        let inner = self.inner.get()?;
        Ok(Keys { inner, number: self.number.load(Ordering::Acquire), object, first })
    }

    /// Stores `bytes` as the pages of `object` from index `first` on; the last page may be partial.
    /// Keeps all pages or none, but other calls may evict or recall pages at any time. Concurrent
    /// puts of a run may leave a mix of their pages. O(bytes).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn put_run(&self, object: u64, first: u64, bytes: &[u8]) -> Result<Put, ReserveError> {
        let keys = self.keys(object, first)?;
        let pages = bytes.len().div_ceil(keys.page_bytes()) as u64;
        let evicted = || keys.inner.counts().here(Counter::Evicted);
        let before = evicted();
        let mut put = match pages <= keys.inner.lent().pages() as u64 {
            true => self.put_parts(keys, bytes, |_| true),
            false => Put::Rejected(Rejected::Full),
        };
        let is_packed = keys.inner.cache.packed.is_some();
        let may_evict_itself =
            pages > 1 && self.takes == Takes::Any && (is_packed || evicted() != before);
        let mut repairs = 0;
        while may_evict_itself && put == Put::Stored && !(0..pages).all(|nth| keys.is_there(nth)) {
            let lost = keys.lost(pages);
            put = match repairs < REPAIRS {
                true => self.put_parts(keys, bytes, |nth| lost.binary_search(&nth).is_ok()),
                false => Put::Rejected(Rejected::Full),
            };
            repairs += 1;
        }
        if put != Put::Stored {
            let (cache, lender) = (&keys.inner.cache, keys.inner.lender());
            (0..pages).for_each(|nth| _ = cache.remove(lender, &keys.key(nth)));
        }
        Ok(put)
    }

    fn put_parts(&self, keys: Keys<'_>, bytes: &[u8], is_wanted: impl Fn(u64) -> bool) -> Put {
        let (ReserveCore { cache, .. }, lender) = (keys.inner, keys.inner.lender());
        let page_bytes = keys.page_bytes();
        let whole = bytes.chunks_exact(page_bytes);
        let (rest, pages) = (whole.remainder(), whole.len() as u64);
        let mut wanted = (0..).zip(keys.zip(whole)).filter(|(nth, _)| is_wanted(*nth));
        loop {
            let mut batch: Batch<'_> = [None; BATCH];
            for (place, (_, part)) in batch.iter_mut().zip(&mut wanted) {
                *place = Some(part);
            }
            if batch[0].is_none() {
                break;
            }
            let put = cache.put_batch(lender, &batch, self.takes);
            if put != Put::Stored {
                return put;
            }
        }
        if rest.is_empty() || !is_wanted(pages) {
            return Put::Stored;
        }
        with_buffer(page_bytes, |page| {
            page[..rest.len()].copy_from_slice(rest);
            page[rest.len()..].fill(0);
            cache.put(lender, &keys.key(pages), page, self.takes)
        })
    }

    /// Returns true if all `pages` pages of `object` from index `first` on are present. Does not
    /// count as a read. O(pages).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn has_run(&self, object: u64, first: u64, pages: u64) -> Result<bool, ReserveError> {
        let keys = self.keys(object, first)?;
        Ok((0..pages).all(|nth| keys.is_there(nth)))
    }

    /// Copies pages of `object` from index `first` on to `buf`, whose last page may be partial.
    /// Returns false if a page is missing, and may then change `buf`. O(bytes).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn get_run(&self, object: u64, first: u64, buf: &mut [u8]) -> Result<bool, ReserveError> {
        let keys = self.keys(object, first)?;
        let page_bytes = keys.page_bytes();
        let mut loaded = 0;
        let is_hit = keys.zip(buf.chunks_mut(page_bytes)).all(|(key, part)| {
            let is_hit = keys.inner.cache.get(keys.inner.lender(), &key, 0, part);
            loaded += u64::from(is_hit);
            is_hit
        });
        keys.count(loaded, is_hit);
        Ok(is_hit)
    }

    /// Fills `buf` with bytes of `object` from byte `offset` on. Returns false if a page is
    /// missing, and may then change `buf`. O(bytes).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    #[inline]
    pub fn get_part(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<bool, ReserveError> {
        let shift = self.inner.get()?.lent().frames().page().shift();
        let keys = self.keys(object, offset >> shift)?;
        let (mut within, mut nth, mut done) = (offset as usize & ((1 << shift) - 1), 0, 0);
        let mut is_hit = true;
        while is_hit && done < buf.len() {
            let end = buf.len().min(done + (1 << shift) - within);
            let part = &mut buf[done..end];
            is_hit = keys.inner.cache.get(keys.inner.lender(), &keys.key(nth), within, part);
            (within, nth, done) = (0, nth + 1, end);
        }
        keys.count(nth - u64::from(!is_hit), is_hit);
        Ok(is_hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::{Request, Reserve};
    use crate::zpool::Codec;
    use glebe_os::internal::sys::page_size;
    use glebe_os::units::{Bytes, Pages};

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
    }

    #[test]
    fn a_run_is_found_as_it_was_put_whatever_its_length() {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap();
        let page = page_size().bytes().as_usize();
        for len in [0, 1, page - 1, page, page + 1, 7 * page, 16 * page, 17 * page, 41 * page + 5] {
            let put = bytes(len);
            assert_eq!(items.put_run(3, u64::MAX - 2, &put).unwrap(), Put::Stored, "{len}");
            let mut got = vec![0xee; len];
            assert!(items.get_run(3, u64::MAX - 2, &mut got).unwrap(), "{len}");
            assert!(got == put, "{len}");
            let (mut one, pages) = (vec![0xee; page], len.div_ceil(page) as u64);
            for nth in 0..pages {
                assert!(items.get(3, (u64::MAX - 2).wrapping_add(nth), &mut one).unwrap());
                let part = &put[nth as usize * page..len.min((nth as usize + 1) * page)];
                assert!(one[..part.len()] == *part && one[part.len()..].iter().all(|b| *b == 0));
            }
            assert!(!items.get(3, (u64::MAX - 2).wrapping_add(42), &mut one).unwrap());
        }
    }

    #[test]
    fn parts_are_found_wherever_they_lie() {
        for codec in [Codec::None, Codec::Lz4] {
            let reserve = Reserve::options().page_cache(codec).build(Bytes::mib(4)).unwrap();
            let items = reserve.page_cache().namespace("items").unwrap();
            let page = page_size().bytes().as_usize();
            let mut put = bytes(5 * page);
            put[2 * page..4 * page].fill(7);
            assert_eq!(items.put_run(1, 0, &put).unwrap(), Put::Stored);
            for at in [0, 1, page - 3, page, 2 * page - 1, 3 * page + 5] {
                for len in [0, 1, 40, page, 2 * page - 5] {
                    let mut got = vec![0xee; len];
                    assert!(items.get_part(1, at as u64, &mut got).unwrap());
                    assert!(got == put[at..at + len], "{len} at {at}");
                }
            }
            assert!(items.invalidate_page(1, 1).unwrap());
            let mut got = [0; 20];
            assert!(items.get_part(1, page as u64 - 20, &mut got).unwrap());
            assert!(!items.get_part(1, page as u64 - 19, &mut got).unwrap());
            reserve.stats().check().unwrap();
        }
    }

    #[test]
    fn a_run_with_a_page_lost_is_a_miss() {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap();
        let page = page_size().bytes().as_usize();
        let (put, mut buf) = (bytes(5 * page), vec![0; 5 * page]);
        for lost in 0..5 {
            assert_eq!(items.put_run(1, 0, &put).unwrap(), Put::Stored);
            assert!(items.invalidate_page(1, lost).unwrap());
            assert!(!items.get_run(1, 0, &mut buf).unwrap(), "page {lost}");
            assert_eq!(items.get_run(1, 0, &mut buf[..page]).unwrap(), lost != 0);
        }
        assert_eq!(items.put_run(1, 0, &put).unwrap(), Put::Stored);
        items.invalidate_object(1).unwrap();
        assert!(!items.get_run(1, 0, &mut buf).unwrap());
    }

    #[test]
    fn without_eviction_what_is_put_stays_and_free_pages_are_found() {
        let reserve = Reserve::new(Pages::new(1024).bytes(page_size())).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap().without_eviction();
        let page = page_size().bytes().as_usize();
        let pages = reserve.len().get();
        let (mut stored, mut buf) = (Vec::new(), vec![0; page]);
        for object in 0.. {
            if items.put_run(object, 0, &[object as u8].repeat(page)).unwrap() != Put::Stored {
                break;
            }
            stored.push(object);
        }
        // Crowded buckets of the index drop some objects.
        let all = |buf: &mut [u8]| {
            stored.iter().filter(|object| items.get(**object, 0, buf).unwrap()).count() as u64
        };
        let there = all(&mut buf);
        assert!(there > pages * 9 / 10 && there <= pages, "{there} of {pages}");
        for round in 0..3 * pages {
            let gone = stored[(round * 7 % pages) as usize % stored.len()];
            let was_there = items.invalidate_page(gone, 0).unwrap();
            let put = items.put_run(gone, 0, &[gone as u8].repeat(page)).unwrap();
            assert!(put == Put::Stored || !was_there, "{put:?}");
        }
        // These rounds may also drop entries of crowded buckets.
        assert!(all(&mut buf) + 9 >= there);
        assert!(reserve.stats().evicted <= 9, "{}", reserve.stats().evicted);
    }

    #[test]
    fn without_eviction_what_was_recalled_is_taken_last() {
        let reserve = Reserve::new(Pages::new(4096).bytes(page_size())).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap().without_eviction();
        let page = page_size().bytes().as_usize();
        let part = reserve.len().get() / 4;
        let put = |object: u64| items.put_run(object, 0, &[object as u8].repeat(page)).unwrap();
        // Takes single pages, because free pages may be scattered.
        let take =
            || drop((0..part).map(|_| reserve.alloc(Pages::new(1)).unwrap()).collect::<Vec<_>>());
        let (mut objects, mut buf) = (0..0, vec![0; page]);
        for _ in 0..24 {
            take();
            let lost = objects.clone().filter(|n| !items.get(*n, 0, &mut buf).unwrap()).count();
            assert!(lost < 8, "{lost} of {objects:?}");
            let kept = objects.end.saturating_sub(part)..objects.end + part / 4;
            (objects.end..kept.end).for_each(|n| assert_eq!(put(n), Put::Stored));
            (objects.start..kept.start).for_each(|n| _ = items.invalidate_page(n, 0).unwrap());
            objects = kept;
        }
    }

    #[test]
    fn of_a_run_longer_than_what_is_idle_nothing_is_kept() {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap();
        let (page, pages) = (page_size().bytes().as_usize(), reserve.len().get());
        let block = reserve.alloc(Request::new(Pages::new(pages / 2)).any()).unwrap();
        for len in [5 * pages / 4, pages + 1, pages * 3 / 4] {
            let put = items.put_run(1, 0, &bytes(len as usize * page)).unwrap();
            assert_eq!(put, Put::Rejected(Rejected::Full), "{len}");
            assert!((0..len).all(|nth| !items.has_run(1, nth, 1).unwrap()), "{len}");
        }
        drop(block);
        reserve.stats().check().unwrap();
    }

    #[test]
    fn no_page_of_a_run_goes_for_another_where_there_is_room() {
        let reserve = Reserve::new(Bytes::mib(16)).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap();
        let (page, pages) = (page_size().bytes().as_usize(), reserve.len().get());
        let _half = reserve.alloc(Request::new(Pages::new(pages / 2)).any()).unwrap();
        items.put_run(2, 0, &[1]).unwrap();
        drop((3..pages / 2).map(|_| reserve.alloc(Pages::new(1)).unwrap()).collect::<Vec<_>>());
        let (put, mut got) =
            (vec![7; pages as usize / 4 * page], vec![0; pages as usize / 4 * page]);
        assert_eq!(items.put_run(1, 0, &put).unwrap(), Put::Stored);
        assert!(items.has_run(1, 0, pages / 4).unwrap());
        assert!(!items.has_run(1, 0, pages / 4 + 1).unwrap());
        assert!(items.get_run(1, 0, &mut got).unwrap() && got == put);
        reserve.stats().check().unwrap();
    }

    #[test]
    fn of_a_run_that_finds_no_room_nothing_is_kept() {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let items = reserve.page_cache().namespace("items").unwrap();
        let page = page_size().bytes().as_usize();
        let mut page_of = vec![0; page];
        assert_eq!(items.put_run(1, 0, &bytes(3 * page)).unwrap(), Put::Stored);
        let mut blocks = Vec::new();
        while let Some(run) = reserve.largest_run().ok().filter(|run| *run > Pages::ZERO) {
            blocks.push(reserve.alloc(run).unwrap());
        }
        assert!(matches!(items.put_run(1, 0, &bytes(3 * page)).unwrap(), Put::Rejected(_)));
        drop(blocks);
        for index in 0..3 {
            assert!(!items.get(1, index, &mut page_of).unwrap());
        }
        let stats = reserve.stats();
        assert_eq!(stats.live, Pages::ZERO);
        stats.check().unwrap();
    }
}
