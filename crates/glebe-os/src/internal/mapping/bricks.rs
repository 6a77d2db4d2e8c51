//! [`Bricks`] are the files of a mapping that has one file a [`Brick`], side by side.
//!
//! The owner takes bricks out to hand them to another process, and puts others in their place.
//! Lock: `slots`, for a call.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

use super::{Mapping, Visibility, Window};
use crate::error::OsError;
use crate::internal::sync::{lock, Mutex};
use crate::internal::sys::memory::brick::Brick;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::memory::mmap::{map_file, map_file_over, set_aside, try_file, unmap};
use crate::internal::sys::memory::pagemap::Pagemap;
use crate::units::{Bytes, PageSize, Pfn};

/// The length of a brick, and the size of its hugetlb pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrickSize {
    pub each: PageSize,
    pub page: PageSize,
}

#[derive(Debug)]
pub struct Bricks {
    size: BrickSize,
    slots: Mutex<Vec<Option<Brick>>>,
}

impl Bricks {
    #[must_use]
    pub fn size(&self) -> BrickSize {
        self.size
    }

    /// Takes out the bricks that are there.
    pub fn take(&self, range: Range<usize>) -> Vec<Brick> {
        lock(&self.slots)[range].iter_mut().filter_map(Option::take).collect()
    }

    #[must_use]
    pub fn are_in(&self, range: Range<usize>) -> bool {
        lock(&self.slots)[range].iter().all(Option::is_some)
    }

    /// Returns the positions of bricks that were taken out.
    #[must_use]
    pub fn taken(&self) -> Vec<usize> {
        let slots = lock(&self.slots);
        (0..slots.len()).filter(|nth| slots[*nth].is_none()).collect()
    }

    pub fn put(&self, at: usize, brick: Brick) {
        lock(&self.slots)[at] = Some(brick);
    }

    /// Frees a page of the mapping.
    pub fn punch(&self, page: usize) -> Result<(), OsError> {
        let pages = self.size.each.bytes().pages_down(self.size.page).as_usize();
        let slots = lock(&self.slots);
        slots[page / pages].as_ref().map_or(Ok(()), |brick| brick.punch((page % pages) as u64))
    }
}

impl Mapping {
    /// Maps new bricks, and reserves their pages.
    pub fn of_bricks(len: Bytes, size: BrickSize, visibility: Visibility) -> Result<Self, OsError> {
        let BrickSize { each, page } = size;
        let new = (0..len.pages_up(each).get()).map(|_| Brick::new(each.bytes(), page));
        Self::with_bricks(new.collect::<Result<_, _>>()?, size, visibility)
    }

    /// Maps bricks of one size.
    pub fn with_bricks(
        bricks: Vec<Brick>,
        size: BrickSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
        let files = bricks.iter().map(Brick::file);
        let mut mapping = Self::of_files(files, size.each.bytes(), size.page)?;
        let slots = Mutex::new(bricks.into_iter().map(Some).collect());
        mapping.bricks = Some(Bricks { size, slots }.into());
        mapping.shown(visibility)
    }

    /// Maps the first `len` bytes of each file, in their order, at a multiple of `page`.
    pub fn of_files<'a>(
        mut files: impl ExactSizeIterator<Item = &'a File> + Clone,
        len: Bytes,
        page: PageSize,
    ) -> Result<Self, OsError> {
        let count = files.len() as u64;
        if let Some(file) = (count == 1).then(|| files.next()).flatten() {
            // The kernel chooses a multiple of the file's page.
            let addr = map_file(file, Bytes::ZERO, len)?;
            return Ok(Self::owned(addr, len, page, None));
        }
        let whole = Bytes::new(len.get().saturating_mul(count));
        // Before there are addresses that a refusal would lose.
        files.clone().try_for_each(|file| try_file(file, Bytes::ZERO, len))?;
        let addr = set_aside(whole, page)?;
        for (nth, file) in files.enumerate() {
            let at = addr + nth * len.as_usize();
            // SAFETY: nobody else knows the new addresses.
            let mapped = unsafe { map_file_over(file, Bytes::ZERO, len, at) };
            if mapped.is_err() {
                // Leaves out the refused piece, whose addresses another thread may have by now.
                let end = at + len.as_usize();
                let rest = [(addr, at), (end, addr + whole.as_usize())];
                for (from, to) in rest.into_iter().filter(|(from, to)| from < to) {
                    // SAFETY: as above.
                    let _ = unsafe { unmap(from, Bytes::new((to - from) as u64)) };
                }
            }
            mapped?;
        }
        let mut mapping = Self::owned(addr, whole, page, None);
        mapping.seams = (1..count).map(|nth| Bytes::new(nth * len.get())).collect();
        Ok(mapping)
    }

    pub fn bricks(&self) -> Option<&Bricks> {
        self.bricks.as_deref()
    }
}

/// Returns the frame of each page of the pool in a brick, if visible.
pub fn frames_of(brick: &Brick) -> Result<Vec<Option<Pfn>>, OsError> {
    let (len, page) = (brick.len(), brick.page());
    let mapping = Mapping::window(brick.file(), len, page)?;
    let entries = Pagemap::open()?.entries(mapping.addr(), len, page)?;
    Ok(entries.into_iter().map(|entry| entry.frame()).collect())
}

impl Window {
    /// Maps a brick at `offset`, where the window has no memory. If the pool has too few pages, the
    /// window is as before.
    pub fn show(&self, offset: Bytes, brick: &Brick) -> Result<(), OsError> {
        let at = self.checked(offset, brick.len());
        try_file(brick.file(), Bytes::ZERO, brick.len())?;
        // SAFETY: `checked` found the range in the window, where the caller has vacated it.
        unsafe {
            map_file_over(brick.file(), Bytes::ZERO, brick.len(), at)?;
            advise(at, brick.len(), Advice::DontFork)?;
            advise(at, brick.len(), Advice::DontDump)?;
            advise(at, brick.len(), Advice::PopulateWrite)
        }
    }

    /// Returns the frame of each page at `offset`, if visible.
    pub fn frames(
        &self,
        offset: Bytes,
        len: Bytes,
        page: PageSize,
    ) -> Result<Vec<Option<Pfn>>, OsError> {
        let entries = Pagemap::open()?.entries(self.checked(offset, len), len, page)?;
        Ok(entries.into_iter().map(|entry| entry.frame()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::more_than_the_pool;
    use super::*;
    use crate::internal::sys::page_size;
    use glebe_testing::child::map_at;

    #[test]
    fn a_window_stays_reserved_if_a_brick_has_no_pages() {
        let Some((len, huge)) = more_than_the_pool() else { return };
        let window = Window::reserve(len, huge).unwrap();
        let brick = match Brick::new(len, huge) {
            Ok(brick) => brick,
            Err(error) => return println!("skipped: {error}"),
        };
        let Err(error) = window.show(Bytes::ZERO, &brick) else {
            return println!("skipped: the pool has {len}");
        };
        let at = std::ptr::with_exposed_provenance_mut(window.checked(Bytes::ZERO, len));
        assert!(!map_at(at, page_size().bytes().as_usize()), "{error}, and the range is free");
    }

    #[test]
    fn files_without_pages_are_refused_before_they_take_addresses() {
        let Some((len, huge)) = more_than_the_pool() else { return };
        let [first, second] = [huge.bytes(), len].map(|len| Brick::new(len, huge));
        let (Ok(first), Ok(second)) = (first, second) else {
            return println!("skipped: no file of huge pages");
        };
        let two = [second.file(), first.file()];
        match Mapping::of_files(two.into_iter(), len, huge) {
            Ok(_) => println!("skipped: the pool has {len}"),
            Err(error) => assert!(!error.subject().contains("0x"), "{error}: at no address"),
        }
    }
}
