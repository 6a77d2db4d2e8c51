//! [`Adopted`] takes over whole pages of the caller, if all can be volatile ([`classify`]).
//!
//! `NoHugePages` forbids huge pages, because making one would undo a mark.
//!
//! The engine `Scan` *arms* (registers with the userfaultfd) only marked parts. Holes get the page
//! of zeros first, because an armed hole counts as lost. [`Budget`] counts armed ranges, because
//! each may split a mapping in three. A new mapping over an armed part is not armed; a call to fill
//! it fails with ENOENT.
//!
//! Unit: base pages from the region's start. Lock: the region's.
//!
//! # Safety
//! The caller of `Options::build_over` promised to leave marked memory to the region.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use super::Error;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::memory::madvise::{advise, transparent_huge_pages_everywhere, Advice};
use glebe_os::internal::sys::memory::map_budget::{Budget, Counted, Exhausted};
use glebe_os::internal::sys::memory::uffd::Uffd;
use glebe_os::internal::sys::memory::vma::{self, classify, classify_watched, Refusal, Vma};
use glebe_os::units::{Bytes, PageSize};

static RANGES: Budget = Budget::one_in(8);

#[derive(Debug)]
pub(super) struct Adopted {
    base: usize,
    page: PageSize,
    armed: Runs,
    share: Counted,
    _huge: NoHugePages,
}

impl Adopted {
    pub(super) fn new(addr: usize, len: Bytes, page: PageSize) -> Result<(Self, Bytes), Error> {
        let range = inner(addr, len, page)?;
        classify(&range)?;
        let huge = NoHugePages::new(&range)?;
        let len = Bytes::new((range.end - range.start) as u64);
        let share = RANGES.share();
        Ok((Self { base: range.start, page, armed: Runs::default(), share, _huge: huge }, len))
    }

    pub(super) fn base(&self) -> usize {
        self.base
    }

    pub(super) fn armed(&self) -> impl Iterator<Item = Extent> + '_ {
        self.armed.iter()
    }

    pub(super) fn arm(&mut self, pages: Extent, uffd: &Uffd) -> Result<(), Error> {
        self.armed.insert(pages);
        if let Err(Exhausted { used: armed, limit }) = self.share.set(self.armed.count()) {
            self.armed.remove(pages);
            return Err(Error::MapBudget { armed, limit });
        }
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the pages belong to the region, which is about to mark them.
        let made = unsafe {
            advise(addr, len, Advice::PopulateRead)
                .and_then(|()| uffd.arm(addr, len))
                // `fill_holes` makes fork always copy the page tables. Else the child would find
                // holes, which count as lost.
                .and_then(|()| uffd.fill_holes(addr, self.page.bytes()))
        };
        made.map_err(|error| {
            self.disarm(pages, uffd);
            self.explain(pages, error)
        })
    }

    /// If the kernel refuses, a touch of a page lost later raises SIGBUS.
    pub(super) fn disarm(&mut self, pages: Extent, uffd: &Uffd) {
        self.forget(pages);
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the pages belong to the region, and disarming changes no contents.
        if unsafe { uffd.disarm(addr, len) }.is_ok() {
            return;
        }
        // A new mapping in the range may cause the refusal.
        for part in armed_parts(&(addr..addr + len.as_usize())).unwrap_or_default() {
            // SAFETY: the part is the region's.
            let _ = unsafe { uffd.disarm(part.start, Bytes::new((part.end - part.start) as u64)) };
        }
    }

    pub(super) fn forget(&mut self, pages: Extent) {
        self.armed.remove(pages);
        self.share.set_beyond(self.armed.count());
    }

    pub(super) fn explain(&self, pages: Extent, error: OsError) -> Error {
        let (addr, len) = pages.place(self.base, self.page);
        match classify_watched(&(addr..addr + len.as_usize())) {
            Ok(()) | Err(Refusal::Unknown(_)) => error.into(),
            Err(refusal) => refusal.into(),
        }
    }
}

fn inner(addr: usize, len: Bytes, page: PageSize) -> Result<Range<usize>, Error> {
    let limit = Bytes::new(usize::MAX as u64);
    let end = usize::try_from(len.get()).ok().and_then(|len| addr.checked_add(len));
    let end = end.ok_or(Error::Beyond { end: limit, limit })?;
    let mask = page.bytes().as_usize() - 1;
    let start = addr.checked_add(mask).ok_or(Error::Empty)? & !mask;
    let end = end & !mask;
    if start >= end {
        return Err(Error::Empty);
    }
    Ok(start..end)
}

#[derive(Debug)]
struct NoHugePages(Vec<Range<usize>>);

impl NoHugePages {
    fn new(range: &Range<usize>) -> Result<Self, OsError> {
        let everywhere = transparent_huge_pages_everywhere();
        let may = |vma: &Vma| vma.has("hg") || (everywhere && !vma.has("nh"));
        let mut parts = Self(Vec::new());
        for vma in vma::among(range)?.iter().filter(|vma| may(vma)) {
            let part = vma.start.max(range.start)..vma.end.min(range.end);
            let len = Bytes::new((part.end - part.start) as u64);
            // SAFETY: no contents change.
            unsafe { advise(part.start, len, Advice::NoHugePage)? };
            parts.0.push(part);
        }
        Ok(parts)
    }
}

impl Drop for NoHugePages {
    fn drop(&mut self) {
        for range in &self.0 {
            let len = Bytes::new((range.end - range.start) as u64);
            // SAFETY: no contents change. If refused, huge pages stay disallowed.
            let _ = unsafe { advise(range.start, len, Advice::HugePage) };
        }
    }
}

pub(super) fn armed_parts(range: &Range<usize>) -> Result<Vec<Range<usize>>, OsError> {
    let all = vma::among(range)?;
    let watched = all.iter().filter(|vma| vma.has("um"));
    Ok(watched.map(|vma| vma.start.max(range.start)..vma.end.min(range.end)).collect())
}

#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.0.iter().filter_map(|(start, end)| Extent::new(*start, end - start))
    }

    fn insert(&mut self, pages: Extent) {
        let (mut start, mut end) = (pages.start(), pages.end());
        while let Some((&first, &last)) = self.0.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, pages: Extent) {
        while let Some((&first, &last)) = self.0.range(..pages.end()).next_back() {
            if last <= pages.start() {
                break;
            }
            self.0.remove(&first);
            if last > pages.end() {
                self.0.insert(pages.end(), last);
            }
            if first < pages.start() {
                self.0.insert(first, pages.start());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_those_of_a_set(
            calls in proptest::collection::vec((any::<bool>(), 0..40_u64, 1..12_u64), 0..60),
        ) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for (adds, start, len) in calls {
                let pages = Extent::new(start, len).unwrap();
                for page in start..start + len {
                    if adds { set.insert(page); } else { set.remove(&page); }
                }
                if adds { runs.insert(pages) } else { runs.remove(pages) }
                let held: Vec<u64> = runs.iter().flat_map(|run| run.start()..run.end()).collect();
                prop_assert!(held.iter().eq(set.iter()));
                let gaps = set.iter().filter(|page| !set.contains(&(*page + 1))).count();
                prop_assert_eq!(runs.count(), gaps as u64);
            }
        }
    }

    #[test]
    fn only_whole_pages_are_inside() {
        let page = PageSize::new(16 << 10).unwrap();
        let kib = |n: u64| Bytes::new(n << 10);
        assert_eq!(inner(16 << 10, kib(32), page).unwrap(), 16 << 10..48 << 10);
        assert_eq!(inner(1, kib(32), page).unwrap(), 16 << 10..32 << 10);
        assert!(matches!(inner(1, kib(31), page), Err(Error::Empty)));
        assert!(matches!(inner(0, Bytes::ZERO, page), Err(Error::Empty)));
        assert!(matches!(inner(usize::MAX - 5, Bytes::new(5), page), Err(Error::Empty)));
        assert!(matches!(inner(8, Bytes::new(u64::MAX), page), Err(Error::Beyond { .. })));
    }
}
