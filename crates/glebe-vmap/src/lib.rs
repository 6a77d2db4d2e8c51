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
//! A [`Space`] owns addresses, managed by a free tree; each [`View`] owns a part of them. Positions
//! are pages of the mapped files: base pages, or pages of a hugetlb pool. Extents of a file count
//! base pages.
//!
//! A dropped view is unmapped *lazily*: until then its addresses have no other use, and no safe
//! code reaches them. A flush unmaps neighbours by one system call. It runs when the list of
//! dropped views exceeds a bound, when addresses or mappings run out, and on [`Space::flush`].
//!
//! Views keep their file alive. The last owner of a file that [`MemFile::new`] made frees its
//! pages, even if a forked child has the descriptor. All views get at most half of
//! `vm.max_map_count`, and a space at most a million mappings. Neighbours in the file share a
//! mapping.
//!
//! A view with a page twice is a ring buffer that reads on past its end. The file and other views
//! may change the bytes, so the kernel copies them and no slice is lent. (The
//! crate `glebe` lends slices of a reserve's views, whose pages have no other owner.) In a forked
//! child nothing is mapped, and calls return [`Error::Forked`].
//!
//! Locks: the list of a flush, also during system calls; then the state of a space, for O(log n). A
//! view costs a system call for each piece and one more. Source: mmap(2), and the kernel's
//! `mm/vmalloc.c` (vm_map_ram, the lazy purge).
#![deny(unsafe_code)]
// No model runs any of it.
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

// Its examples are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
