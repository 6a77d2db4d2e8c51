//! A kernel without huge pages, for the nodes of free trees.

use crate::units::PageSize;

pub(crate) fn transparent_huge_page() -> Option<PageSize> {
    None
}

pub(crate) fn prefer_huge<T>(_memory: &mut [T]) {
    unreachable!("there are no huge pages");
}
