//! [`FrameUses`] is what one reading of `/proc/kpageflags` shows of all memory, so that several
//! questions cost one reading: 15 s on a machine with 1 TiB.

use std::cell::OnceCell;

use glebe_os::internal::sys::machine::absent::mark_elsewhere;
use glebe_os::internal::sys::machine::kpage::{runs, uses, Use};
use glebe_os::internal::sys::machine::zones::frames_of_nodes;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages};

use super::{smallest_hugetlb, Node};

/// The use of each huge page of the smallest size, from frame 0 on.
#[derive(Debug, Default)]
pub struct FrameUses {
    /// Empty until somebody asks; `None` if frames are hidden.
    uses: OnceCell<Option<Vec<Use>>>,
}

impl FrameUses {
    /// Takes the uses that the caller has read; `None` if frames are hidden.
    #[must_use]
    pub fn of(uses: Option<Vec<Use>>) -> Self {
        Self { uses: OnceCell::from(uses) }
    }

    /// Returns the bytes of the longest idle run, and of the longest idle or free run, in pages of
    /// `size` on `node`, or anywhere for `None`. Returns `None` if frames are hidden.
    pub(super) fn longest_runs(
        &self,
        size: PageSize,
        node: Option<Node>,
    ) -> Option<(Bytes, Bytes)> {
        let (page, small) = (page_size(), smallest_hugetlb().unwrap_or(page_size()));
        let read = || uses(small.bytes().pages_down(page)).ok();
        let small_uses = self.uses.get_or_init(read).as_deref()?;
        let block = size.bytes().pages_down(page);
        let mut uses = in_larger(small_uses, size.bytes().pages_down(small));
        if let Some(node) = node {
            mark_elsewhere(&mut uses, block, node, &frames_of_nodes().ok()?);
        }
        let longest = |counts: fn(Use) -> bool| {
            let all = runs(&uses, block, counts).into_iter();
            all.map(|(_, len)| len.bytes(page)).max().unwrap_or_default()
        };
        let idle = longest(|of| of == Use::PoolIdle);
        Some((idle, longest(|of| matches!(of, Use::PoolIdle | Use::Free))))
    }
}

/// Returns the use of each whole block of `count` blocks; [`Use::Other`] if these differ.
fn in_larger(uses: &[Use], count: Pages) -> Vec<Use> {
    let of = |part: &[Use]| match part.iter().all(|of| *of == part[0]) {
        true => part[0],
        false => Use::Other,
    };
    uses.chunks_exact(count.as_usize().max(1)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Use::{Free, Other, PoolIdle, PoolInUse};

    #[test]
    fn a_larger_page_has_a_use_if_all_its_parts_have_it() {
        let small = [Free, Free, PoolIdle, PoolIdle, PoolIdle, PoolInUse, Free, PoolIdle, Free];
        assert_eq!(in_larger(&small, Pages::new(2)), [Free, PoolIdle, Other, Other]);
        assert_eq!(in_larger(&small, Pages::new(1)), small);
    }

    #[test]
    fn runs_are_of_the_pages_that_are_asked_for() {
        let Some(small) = smallest_hugetlb() else {
            return println!("skipped: the kernel has no pools of huge pages");
        };
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
}
