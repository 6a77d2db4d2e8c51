//! Views: scattered pages of a file in memory, mapped side by side, so that they read as one.
//!
//! ```
//! use std::sync::Arc;
//! use glebe::extent::Extent;
//! use glebe::units::Bytes;
//! use glebe::vmap::{MemFile, Space};
//!
//! let file = Arc::new(MemFile::new(Bytes::mib(1))?);
//! let space = Space::new(Bytes::mib(16))?;
//! // The pages 9, 2 and 3, in this order.
//! let view = space.view(&file, &[Extent::new(9, 1).unwrap(), Extent::new(2, 2).unwrap()])?;
//! view.write(Bytes::new(4090), b"over a border")?;
//! let mut bytes = [0; 13];
//! view.read(Bytes::new(4090), &mut bytes)?;
//! assert_eq!(&bytes, b"over a border");
//! # Ok::<(), glebe::vmap::Error>(())
//! ```
//!
//! A [`Space`] owns addresses, which a free tree manages; a [`View`] owns a part of them from its
//! making to its drop. Positions are pages of the files that are mapped there: base pages, or those
//! of a hugetlb pool. Extents of a file are base pages, as everywhere.
//!
//! A view that is dropped is unmapped *lazily*: it goes to a list, its addresses are used for
//! nothing else, and no safe code reaches what is still mapped there. The list is flushed when its
//! pages or mappings pass a bound, when addresses or mappings run out, and by [`Space::flush`]:
//! what lies side by side in it is cleared by one system call.
//!
//! A view keeps its file. The pages of a file that [`MemFile::new`] made are given back when its
//! maker has dropped it and its views, although a forked child still has the descriptor.
//!
//! The kernel's limit on mappings (`vm.max_map_count`) is on the whole process: views have at most
//! half of it, and those of a space at most a million; a view beyond that is an error. Pages that
//! follow one another in the file are one mapping.
//!
//! Bytes of a view may be changed through the file or another view of the same pages: they are
//! copied in and out by the kernel, never lent as a slice. ([`reserve`](crate::reserve) has views
//! whose pages nobody else has, which are slices.) The same page twice in a view is allowed: so a
//! ring buffer reads on over its end.
//!
//! After fork the child has the addresses, nothing mapped over them, and every call is
//! [`Error::Forked`].
//!
//! Locks: the list of a flush, then the state of a space, held for O(log n); system calls are made
//! under neither but the list of a flush. Cost: a system call for each piece and one more, and one
//! to unmap, later and often together with others.
//!
//! Source: vm_map_ram and the lazy purge of the kernel's `mm/vmalloc.c`, mmap(2). Not done here:
//! who may have which pages of the file.

mod error;
mod space;
mod view;

pub use crate::sys::memfd::MemFile;
pub use error::Error;
pub use space::{Options, Space, Usage};
pub use view::View;

#[cfg(test)]
mod tests;
