//! [`Rlsf`]: the public crate of that name as a [`Space`].
//!
//! It manages memory and not positions: each block begins with a header, and free ones are linked
//! through themselves. So it is given memory, [`UNIT`] bytes a page, in which a block of n pages
//! takes n units, header included. O(1); promises no lowest place and knows no window. An aligned
//! block's header lies before the multiple, in the unit before.
//!
//! # Safety
//! The memory is the peer's alone and lives as long as it does. A place is given back once, with
//! the word whether its alignment was more than the crate's own, which is all that matters there.
#![allow(unsafe_code)]

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ptr::NonNull;

use glebe::extent::Extent;
use rlsf::{Tlsf, GRANULARITY};

use super::space::{fill_in_order, Place, Space};
use super::state::State;

/// Bytes that stand for a page: the least that a block takes.
const UNIT: usize = GRANULARITY;
const HEADER: usize = GRANULARITY / 2;
/// The largest alignment in pages that a case asks of it.
const ALIGN_MAX: usize = 1024;

pub(super) struct Rlsf {
    pool: Tlsf<'static, u32, u32, 32, 32>,
    memory: NonNull<u8>,
    layout: Layout,
}

impl Rlsf {
    /// In memory for half as much again as is used.
    pub(super) fn new(used_end: u64) -> Self {
        let pages = used_end as usize * 3 / 2 + (1 << 16);
        let layout = Layout::from_size_align(pages * UNIT, ALIGN_MAX * UNIT).expect("in range");
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let mut pool = Tlsf::new();
        // SAFETY: this memory is in no other use, and given back when the pool is gone.
        unsafe { pool.insert_free_block_ptr(NonNull::slice_from_raw_parts(memory, layout.size())) };
        Self { pool, memory, layout }
    }
}

impl Drop for Rlsf {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the pool is used no more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

impl Space for Rlsf {
    fn alloc(&mut self, len: u64, align: u64, _: Option<Extent>) -> Option<Place> {
        let align = if align == 1 { HEADER } else { align as usize * UNIT };
        let layout = Layout::from_size_align(len as usize * UNIT - HEADER, align).ok()?;
        let block = self.pool.allocate(layout)?;
        let offset = block.as_ptr() as usize - self.memory.as_ptr() as usize;
        // The token also says which of the two ways to align it was.
        let aligned = u32::from(align > HEADER);
        let token = (offset / HEADER) as u32 * 2 + aligned;
        Some(Place { token, ..Place::at((offset / UNIT) as u64) })
    }

    fn free(&mut self, place: Place, _: u64) {
        let offset = (place.token / 2) as usize * HEADER;
        let align = if place.token % 2 == 0 { HEADER } else { UNIT };
        // SAFETY: `token` is of a block that was given and not yet given back, with an alignment
        // on the same side of the pool's own.
        unsafe { self.pool.deallocate(self.memory.add(offset), align) };
    }

    fn fill(&mut self, state: &State) -> Vec<Place> {
        fill_in_order(self, state)
    }
}
