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
use crate::internal::sys::memory::mmap::{map_file, set_aside, unmap};
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
        mut files: impl ExactSizeIterator<Item = &'a File>,
        len: Bytes,
        page: PageSize,
    ) -> Result<Self, OsError> {
        let count = files.len() as u64;
        if let Some(file) = (count == 1).then(|| files.next()).flatten() {
            // SAFETY: the kernel chooses the address, a multiple of the file's page.
            let addr = unsafe { map_file(file, Bytes::ZERO, len, None) }?;
            return Ok(Self::owned(addr, len, page, None));
        }
        let whole = Bytes::new(len.get().saturating_mul(count));
        let addr = set_aside(whole, page)?;
        for (nth, file) in files.enumerate() {
            // SAFETY: nobody else knows the new addresses.
            unsafe {
                let at = addr + nth * len.as_usize();
                if let Err(error) = map_file(file, Bytes::ZERO, len, Some(at)) {
                    let _ = unmap(addr, whole);
                    return Err(error);
                }
            }
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
    /// Maps a brick at `offset`, where the window has no memory.
    pub fn show(&self, offset: Bytes, brick: &Brick) -> Result<(), OsError> {
        let at = self.checked(offset, brick.len());
        // SAFETY: `checked` found the range in the window, where the caller has vacated it.
        unsafe {
            map_file(brick.file(), Bytes::ZERO, brick.len(), Some(at))?;
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
