//! [`Mapping::gathered`] and [`Mapping::joined`] move parts of mappings side by side. Pages keep
//! their frames.
//!
//! Each stretch becomes a VMA, which `vm.max_map_count` limits. A move costs about 8 µs. Source:
//! mremap(2).
#![allow(unsafe_code)]

use super::Mapping;
use crate::error::OsError;
use crate::internal::sys::memory::mmap::{set_aside, unmap_between};
use crate::internal::sys::memory::place;
use crate::units::{Bytes, PageSize, Pages};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub part: usize,
    pub offset: Bytes,
    pub len: Bytes,
}

impl Stretch {
    fn end(&self) -> Bytes {
        self.offset + self.len
    }

    /// Joins neighbours in `pages` (mapping, page index) into stretches, and keeps their order.
    pub fn of_pages(pages: impl Iterator<Item = (usize, u64)>, page: PageSize) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (part, index) in pages {
            let (offset, len) = (Pages::new(index).bytes(page), page.bytes());
            match all.last_mut() {
                Some(last) if last.part == part && last.end() == offset => {
                    last.len = last.len + len
                }
                _ => all.push(Self { part, offset, len }),
            }
        }
        all
    }
}

impl Mapping {
    pub(super) fn as_stretches(&self, part: usize) -> Vec<Stretch> {
        let starts = std::iter::once(Bytes::ZERO).chain(self.seams.iter().copied());
        let ends = self.seams.iter().copied().chain([self.len]);
        starts.zip(ends).map(|(offset, end)| Stretch { part, offset, len: end - offset }).collect()
    }

    /// Makes one mapping of `stretches`, in their order, at a multiple of `align`, and unmaps the
    /// rest. Each part must be one VMA of private memory that children do not get, and all parts
    /// must have one page size. If a move fails, unmaps all parts.
    pub fn gathered(
        parts: Vec<Self>,
        stretches: &[Stretch],
        align: PageSize,
    ) -> Result<Self, OsError> {
        let page = parts.first().map_or(align, |part| part.page);
        Self::side_by_side(parts, stretches, page, align)
    }

    /// Makes one mapping of several, in their order, at a multiple of `align`. Forked children must
    /// get none of the parts. Each part must begin at a multiple of its page size in the result.
    pub fn joined(parts: Vec<Self>, align: PageSize) -> Result<Self, OsError> {
        let stretches: Vec<Stretch> =
            parts.iter().enumerate().flat_map(|(n, part)| part.as_stretches(n)).collect();
        Self::side_by_side(parts, &stretches, crate::internal::sys::page_size(), align)
    }

    fn side_by_side(
        parts: Vec<Self>,
        stretches: &[Stretch],
        page: PageSize,
        align: PageSize,
    ) -> Result<Self, OsError> {
        let len = stretches.iter().fold(Bytes::ZERO, |sum, stretch| sum + stretch.len);
        let addr = set_aside(len, align)?;
        let is_noted = parts.iter().any(|part| part.own.is_some());
        move_all(parts, stretches, addr)?;
        let mut all = Self::owned(addr, len, page, None);
        all.in_child = false;
        let ends = stretches.iter().scan(Bytes::ZERO, |at, stretch| {
            *at = *at + stretch.len;
            Some(*at)
        });
        all.seams = ends.collect();
        all.seams.pop(); // the end
        Ok(if is_noted { all.noted() } else { all })
    }

    /// Moves the mapping to addresses set aside for it, or unmaps the mapping if that fails.
    pub(super) fn moved_to(mut self, addr: usize) -> Result<Self, OsError> {
        let (len, page, file) = (self.len, self.page, self.file.take());
        let (in_child, is_borrowed, guard) = (self.in_child, self.is_borrowed, self.guard);
        let (seams, bricks) = (self.seams.clone(), self.bricks.take());
        let is_noted = self.own.is_some();
        let stretches = self.as_stretches(0);
        move_all(vec![self], &stretches, addr)?;
        let mut all = Self::owned(addr, len, page, file);
        (all.in_child, all.is_borrowed, all.guard) = (in_child, is_borrowed, guard);
        (all.seams, all.bricks) = (seams, bricks);
        Ok(if is_noted { all.noted() } else { all })
    }

    /// Unmaps everything outside `moved`, which is ascending.
    pub(super) fn unmap_but(mut self, moved: &[Stretch]) {
        let starts = std::iter::once(Bytes::ZERO).chain(moved.iter().map(Stretch::end));
        let ends = moved.iter().map(|stretch| stretch.offset).chain([self.len]);
        for (from, to) in starts.zip(ends) {
            // SAFETY: the owner gives the mapping up, and the calls leave out the moved stretches.
            unsafe { unmap_between(self.addr + from.as_usize(), self.addr + to.as_usize()) };
        }
        (self.file, self.bricks, self.seams, self.own) = (None, None, Vec::new(), None);
        std::mem::forget(self);
    }
}

/// Moves `stretches` to addresses set aside from `to` on, and unmaps the rest of `parts`. On
/// failure unmaps all parts and targets, but leaves a target that the kernel may have unmapped,
/// because other memory may be there by now.
fn move_all(parts: Vec<Mapping>, stretches: &[Stretch], to: usize) -> Result<(), OsError> {
    let mut at = to;
    let mut outcome = Ok(());
    let mut moved = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        let from = parts[stretch.part].addr + stretch.offset.as_usize();
        // SAFETY: the caller gives up the parts, and the target addresses hold nothing.
        outcome = unsafe { place::move_to(from, stretch.len, at) };
        if outcome.is_err() {
            break;
        }
        at += stretch.len.as_usize();
        moved.push(*stretch);
    }
    if let (Err(error), Some(failed)) = (&outcome, stretches.get(moved.len())) {
        let end = stretches.iter().fold(to, |end, stretch| end + stretch.len.as_usize());
        let doubtful = if place::was_tried(error) { failed.len.as_usize() } else { 0 };
        // SAFETY: nobody else knows the addresses.
        unsafe {
            unmap_between(to, at);
            unmap_between(at + doubtful, end);
        }
    }
    moved.sort_unstable_by_key(|stretch| (stretch.part, stretch.offset));
    let mut rest = &moved[..];
    for (n, part) in parts.into_iter().enumerate() {
        let (own, others) = rest.split_at(rest.partition_point(|stretch| stretch.part == n));
        rest = others;
        part.unmap_but(own);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::mapping::Visibility;
    use crate::internal::sys::memory::mmap::{set_aside_at, unmap};
    use crate::internal::sys::memory::pagemap::{frames_visible, Entry, Pagemap};
    use crate::internal::sys::page_size;

    fn numbered(pages: u64) -> Mapping {
        let len = Pages::new(pages).bytes(page_size());
        let mapping = Mapping::aligned(len, page_size(), Visibility::PRIVATE).unwrap();
        for n in 0..pages {
            mapping.write(Pages::new(n).bytes(page_size()), &[n as u8 + 1]);
        }
        mapping
    }

    fn frames(addr: usize, len: Bytes) -> Vec<Entry> {
        Pagemap::open().unwrap().entries(addr, len, page_size()).unwrap()
    }

    fn first_bytes(mapping: &Mapping) -> Vec<u8> {
        let read = |n| {
            let mut byte = [0];
            mapping.read(Pages::new(n).bytes(page_size()), &mut byte);
            byte[0]
        };
        (0..mapping.len().pages_up(page_size()).get()).map(read).collect()
    }

    #[test]
    fn pages_side_by_side_are_one_stretch() {
        let pages = [(0, 3), (0, 4), (1, 5), (1, 7), (1, 8), (0, 9)];
        let page = page_size();
        let all = Stretch::of_pages(pages.into_iter(), page);
        let stretch = |part, index, len| Stretch {
            part,
            offset: Pages::new(index).bytes(page),
            len: Pages::new(len).bytes(page),
        };
        assert_eq!(all, [stretch(0, 3, 2), stretch(1, 5, 1), stretch(1, 7, 2), stretch(0, 9, 1)]);
    }

    #[test]
    fn pages_keep_bytes_and_frames_and_may_be_moved_again() {
        let frames = |mapping: &Mapping| frames(mapping.addr(), mapping.len());
        let parts = vec![numbered(6), numbered(4)];
        let had: Vec<_> = parts.iter().map(&frames).collect();
        let order = [(1, 3), (0, 0), (0, 1), (1, 0), (0, 5)];
        let stretches = Stretch::of_pages(order.into_iter(), page_size());
        let align = PageSize::new(1 << 20).unwrap();
        let one = Mapping::gathered(parts, &stretches, align).unwrap();
        assert_eq!(one.addr() % align.bytes().as_usize(), 0);
        assert_eq!(first_bytes(&one), [4, 1, 2, 1, 6]);
        if frames_visible() {
            let expected: Vec<_> = order.iter().map(|(part, n)| had[*part][*n as usize]).collect();
            assert_eq!(frames(&one), expected);
        }
        let two = Mapping::joined(vec![one, numbered(2)], page_size()).unwrap();
        assert_eq!(first_bytes(&two), [4, 1, 2, 1, 6, 1, 2]);
        let to = set_aside(two.len(), align).unwrap();
        let three = two.moved_to(to).unwrap();
        assert_eq!((three.addr(), first_bytes(&three)), (to, vec![4, 1, 2, 1, 6, 1, 2]));
    }

    #[test]
    fn what_is_in_no_stretch_goes_and_what_moved_out_is_left_alone() {
        let part = numbered(5);
        let (base, page) = (part.addr(), page_size().bytes().as_usize());
        let had = frames(base, part.len());
        let order = [(0, 1), (0, 3)];
        let stretches = Stretch::of_pages(order.into_iter(), page_size());
        let one = Mapping::gathered(vec![part], &stretches, page_size()).unwrap();
        assert_eq!(first_bytes(&one), [2, 4]);
        // Others may have mapped memory there since.
        for (n, had) in had.into_iter().enumerate() {
            let at = base + n * page;
            if set_aside_at(at, page_size().bytes()).is_ok() {
                // SAFETY: set aside just now.
                unsafe { unmap(at, page_size().bytes()).unwrap() };
            } else if frames_visible() {
                assert_ne!(frames(at, page_size().bytes())[0], had, "page {n} is still there");
            }
        }
    }
}
