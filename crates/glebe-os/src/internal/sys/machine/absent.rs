//! [`mark_absent`] finds frames without memory, which have no flag in `/proc/kpageflags` of newer
//! kernels (6.18). [`mark_elsewhere`] finds frames of other NUMA nodes.

use std::collections::HashSet;
use std::ops::Range;

use super::kpage::Use;
use super::memory_block::{BlockState, MemoryBlocks};
use super::numa::Node;
use crate::error::OsError;
use crate::units::{Pages, Pfn};

/// Marks entries whose first frame is in no online block as [`Use::Absent`]. `uses` has an entry
/// for each `step` frames, from frame 0 on.
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

/// Marks entries whose last frame is not on `node` as [`Use::Absent`]. (Frame 0 is often on none.)
/// Where stretches overlap, the first one counts.
pub fn mark_elsewhere(uses: &mut [Use], step: Pages, node: Node, stretches: &[(Node, Range<Pfn>)]) {
    for (nth, found) in uses.iter_mut().enumerate() {
        let frame = Pfn::new((nth as u64 + 1) * step.get() - 1);
        let at = stretches.iter().find(|(_, frames)| frames.contains(&frame));
        if at.is_none_or(|(on, _)| *on != node) {
            *found = Use::Absent;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert!(there.abs_diff(all) <= 2 * blocks.size().get(), "{there} of {all} bytes");
    }

    #[test]
    fn what_no_block_on_line_has_is_absent() {
        let scratch = glebe_testing::Scratch::new("absent");
        fs::write(scratch.path().join("block_size_bytes"), "8000000").unwrap();
        for (number, state) in [(0, "online"), (2, "offline"), (3, "online")] {
            let dir = scratch.path().join(format!("memory{number}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("state"), state).unwrap();
        }
        let blocks = MemoryBlocks::below(scratch.path()).unwrap();
        let step = Pages::new(blocks.pages().get() / 2);
        let mut uses = [Use::Other; 9];
        mark_absent(&mut uses, step, &blocks).unwrap();
        use Use::{Absent, Other};
        assert_eq!(uses, [Other, Other, Absent, Absent, Absent, Absent, Other, Other, Absent]);
    }

    #[test]
    fn frames_of_other_nodes_are_absent() {
        use Use::{Absent, Free, PoolIdle};
        let frames = |node, from, to| (Node(node), Pfn::new(from)..Pfn::new(to));
        let stretches = [frames(0, 1, 4), frames(1, 4, 8), frames(0, 12, 16), frames(1, 12, 20)];
        let on = |node| {
            let mut uses = [Free, Free, PoolIdle, Free, Free, Free, Free, Free, Free, Free];
            mark_elsewhere(&mut uses, Pages::new(2), Node(node), &stretches);
            uses
        };
        let [a, f, p] = [Absent, Free, PoolIdle];
        assert_eq!(on(0), [f, f, a, a, a, a, f, f, a, a], "frame 0 is on no node");
        assert_eq!(on(1), [a, a, p, f, a, a, a, a, f, f]);
        assert_eq!(on(7), [a; 10]);
    }
}
