//! [`mark_absent`] finds frames without memory. Newer kernels (6.18) give such frames no flag in
//! `/proc/kpageflags`, so that they look like the kernel's own.

use std::collections::HashSet;

use super::kpage::Use;
use super::memory_block::{BlockState, MemoryBlocks};
use crate::error::OsError;
use crate::units::Pages;

/// Marks each use of frames that lie in no memory block on line as [`Use::Absent`]. `uses` has an
/// entry for each `step` frames, from frame 0 on.
///
/// # Errors
/// If the memory blocks cannot be listed.
pub fn mark_absent(uses: &mut [Use], step: Pages, blocks: &MemoryBlocks) -> Result<(), OsError> {
    let online = blocks.list()?.into_iter().filter(|one| one.state == BlockState::Online);
    let numbers: HashSet<u64> = online.map(|one| one.number).collect();
    for (nth, found) in uses.iter_mut().enumerate() {
        let frame = nth as u64 * step.get();
        if !numbers.contains(&(frame / blocks.pages().get())) {
            *found = Use::Absent;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sys::machine::kpage::uses;
    use crate::internal::sys::page_size;
    use crate::units::Bytes;

    #[test]
    fn the_map_has_the_bytes_of_the_blocks_on_line() {
        let size = Bytes::mib(2);
        let pages = size.pages_down(page_size());
        let (Ok(blocks), Ok(mut uses)) = (MemoryBlocks::machine(), uses(pages)) else {
            println!("skipped: no memory blocks, or frames are hidden");
            return;
        };
        mark_absent(&mut uses, pages, &blocks).unwrap();
        let states = blocks.list().unwrap().into_iter().map(|block| block.state);
        let online = states.filter(|state| *state == BlockState::Online).count() as u64;
        let there = uses.iter().filter(|of| **of != Use::Absent).count() as u64;
        let [there, all] = [there * size.get(), online * blocks.size().get()];
        // A kernel that marks holes may find one within a block. Another test may have taken a few
        // blocks off line for a moment.
        assert!(there.abs_diff(all) <= 8 * blocks.size().get(), "{there} of {all} bytes");
    }
}
