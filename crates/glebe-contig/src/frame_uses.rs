//! [`FrameUses`] keeps one reading of all frames, so that several questions need only one. A
//! reading takes 65 ns for each frame: 17 s for 1 TiB.

use std::cell::OnceCell;

use glebe_os::internal::sys::machine::absent::mark_elsewhere;
use glebe_os::internal::sys::machine::hugetlb::smallest;
use glebe_os::internal::sys::machine::kpage::{runs, uses, Use};
use glebe_os::internal::sys::machine::zones::frames_of_nodes;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages};

use super::Node;

/// The use of each block of frames, from frame 0 on. A block has the kernel's [`smallest`] size of
/// huge pages. Later changes of the machine do not show.
#[derive(Debug, Default)]
pub struct FrameUses {
    /// Empty until the first question; `None` if frames are hidden.
    blocks: OnceCell<Option<Vec<Use>>>,
}

impl FrameUses {
    /// Takes the uses that the caller has read; `None` if frames are hidden.
    #[must_use]
    pub fn of(blocks: Option<Vec<Use>>) -> Self {
        Self { blocks: OnceCell::from(blocks) }
    }

    /// Returns the bytes of the longest idle run, and of the longest idle or free run, in pages of
    /// `size` on `node`, or anywhere for `None`. Returns `None` if frames are hidden.
    pub(super) fn longest_runs(
        &self,
        size: PageSize,
        node: Option<Node>,
    ) -> Option<(Bytes, Bytes)> {
        let (page, small) = (page_size(), smallest());
        let read = || uses(small.bytes().pages_down(page)).ok();
        let blocks = self.blocks.get_or_init(read).as_deref()?;
        let each = size.bytes().pages_down(page);
        let mut joined = joined(blocks, size.bytes().pages_down(small));
        if let Some(node) = node {
            mark_elsewhere(&mut joined, each, node, &frames_of_nodes().ok()?);
        }
        let longest = |counts: fn(Use) -> bool| {
            let all = runs(&joined, each, counts).into_iter();
            all.map(|(_, len)| len.bytes(page)).max().unwrap_or_default()
        };
        let idle = longest(|of| of == Use::PoolIdle);
        Some((idle, longest(|of| matches!(of, Use::PoolIdle | Use::Free))))
    }
}

/// Joins each `count` blocks to one, whose use is that of its parts, or [`Use::Other`] if they
/// differ. Drops an incomplete last one.
fn joined(blocks: &[Use], count: Pages) -> Vec<Use> {
    let of = |part: &[Use]| match part.iter().all(|of| *of == part[0]) {
        true => part[0],
        false => Use::Other,
    };
    blocks.chunks_exact(count.as_usize().max(1)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_os::internal::sys::machine::numa;
    use Use::{Free, Other, PoolIdle, PoolInUse};

    #[test]
    fn a_larger_page_has_a_use_if_all_its_parts_have_it() {
        let small = [Free, Free, PoolIdle, PoolIdle, PoolIdle, PoolInUse, Free, PoolIdle, Free];
        assert_eq!(joined(&small, Pages::new(2)), [Free, PoolIdle, Other, Other]);
        assert_eq!(joined(&small, Pages::new(1)), small);
    }

    #[test]
    fn runs_are_of_the_pages_that_are_asked_for() {
        let small = smallest();
        let mut all = vec![Other; 8];
        all[1..4].fill(PoolIdle);
        all[4..7].fill(Free);
        let bytes = |count: u64| Bytes::new(count * small.bytes().get());
        let seen = FrameUses::of(Some(all));
        assert_eq!(seen.longest_runs(small, None), Some((bytes(3), bytes(6))));
        let twice = PageSize::new(2 * small.bytes().get()).unwrap();
        assert_eq!(seen.longest_runs(twice, None), Some((bytes(2), bytes(4))));
        assert_eq!(FrameUses::of(None).longest_runs(small, None), None);
    }

    #[test]
    fn a_node_has_no_longer_runs_than_the_machine_and_all_nodes_see_one_reading() {
        let (seen, size) = (FrameUses::default(), smallest());
        let Some(all) = seen.longest_runs(size, None) else {
            return println!("skipped: frames are hidden");
        };
        let of_nodes: Vec<_> = numa::with_memory()
            .into_iter()
            .map(|node| seen.longest_runs(size, Some(node)).unwrap())
            .collect();
        assert!(of_nodes.iter().all(|of| of.0 <= all.0 && of.1 <= all.1), "{of_nodes:?} {all:?}");
        assert_eq!(seen.longest_runs(size, None), Some(all));
        // No node has this number, so no run is on it.
        assert_eq!(seen.longest_runs(size, Some(Node(1 << 20))), Some(Default::default()));
    }
}
