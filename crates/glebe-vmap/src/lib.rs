//! Views map scattered pages of a file in memory side by side, so that they read as one range.
//!
//! ```
//! use std::sync::Arc;
//! use glebe_vmap::extent::Extent;
//! use glebe_vmap::units::Bytes;
//! use glebe_vmap::{MemFile, Space};
//!
//! let file = Arc::new(MemFile::new(Bytes::mib(1))?);
//! let space = Space::new(Bytes::mib(16))?;
//! // The pages 9, 2 and 3, in this order.
//! let view = space.view(&file, &[Extent::new(9, 1).unwrap(), Extent::new(2, 2).unwrap()])?;
//! view.write(Bytes::new(4090), b"over a border")?;
//! let mut bytes = [0; 13];
//! view.read(Bytes::new(4090), &mut bytes)?;
//! assert_eq!(&bytes, b"over a border");
//! # Ok::<(), glebe_vmap::Error>(())
//! ```
//!
//! A [`Space`] owns addresses, managed by a free tree; each [`View`] owns a part of them. Extents
//! count base pages, even for a hugetlb file.
//!
//! A dropped view is unmapped *lazily*: until a flush, its addresses are not reused. A flush unmaps
//! neighbouring views by one system call. It runs when dropped views exceed a bound, when addresses
//! or mappings run out, and on [`Space::flush`].
//!
//! Views keep their file alive. All views together get at most half of `vm.max_map_count`, and a
//! space at most 2^20 mappings. Extents that follow each other in the file share a mapping.
//!
//! The kernel copies bytes and no slice is lent, because others may change the bytes. In a forked
//! child no view is mapped, and fallible calls fail.
//!
//! Lock order: the list of a flush, then the state of a space. Source: mmap(2), `mm/vmalloc.c`
//! (vm_map_ram).
#![deny(unsafe_code)]
#![cfg(not(loom))]

mod error;
pub mod free_tree;
mod space;
mod view;

pub use error::Error;
pub use glebe_os::internal::sys::memory::memfd::MemFile;
#[doc(no_inline)]
pub use glebe_os::{error::OsError, extent, page_size, units};
pub use space::{Options, Space, Usage};
pub use view::View;

#[cfg(test)]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
