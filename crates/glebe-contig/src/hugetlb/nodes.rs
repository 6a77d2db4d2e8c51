//! [`Nodes`] says which NUMA node a huge page is on.
//!
//! A search for a run needs a pool that frees its newest page first. The kernel does so only within
//! a node, and takes surplus pages from the caller's node first. So the search binds its thread to
//! one node, and skips nodes whose processors are forbidden. Source: mm/hugetlb.c
//! (`gather_surplus_pages`).

use std::collections::BTreeSet;
use std::ops::Range;

use glebe_os::internal::sys::machine::numa::{self, Node, ThreadPolicy};
use glebe_os::internal::sys::machine::zones::frames_of_nodes;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::one_processor::OneProcessor;
use glebe_os::units::{PageSize, Pfn};

pub(super) enum Nodes {
    One,
    /// Stretches of huge page frames with their nodes.
    Several(Vec<(Node, Range<u64>)>),
}

impl Nodes {
    pub fn of_machine(size: PageSize, only: &[Node]) -> Self {
        if numa::online().len() == 1 {
            return Self::One;
        }
        let per_page = size.bytes().pages_down(page_size()).get();
        let huge = |frames: Range<Pfn>| frames.start.get() / per_page..frames.end.get() / per_page;
        let all = frames_of_nodes().unwrap_or_default().into_iter();
        let may_run = |node| OneProcessor::among(&numa::processors(node)).is_some();
        let is_open = |node| (only.is_empty() || only.contains(&node)) && may_run(node);
        let open = all.filter(|(node, _)| is_open(*node));
        Self::Several(open.map(|(node, frames)| (node, huge(frames))).collect())
    }

    pub fn are_any(&self) -> bool {
        match self {
            Self::One => true,
            Self::Several(stretches) => !stretches.is_empty(),
        }
    }

    pub fn have(&self, number: u64) -> bool {
        matches!(self, Self::One) || self.of(number).is_some()
    }

    pub fn of(&self, number: u64) -> Option<Node> {
        let Self::Several(stretches) = self else { return None };
        stretches.iter().find(|(_, frames)| frames.contains(&number)).map(|(node, _)| *node)
    }

    pub fn most(&self, mut numbers: BTreeSet<u64>) -> (BTreeSet<u64>, Option<Node>) {
        let on = |node: Option<Node>| numbers.iter().filter(|n| self.of(**n) == node).count();
        let nodes: BTreeSet<Option<Node>> = numbers.iter().map(|n| self.of(*n)).collect();
        let node = nodes.into_iter().max_by_key(|node| on(*node)).flatten();
        numbers.retain(|number| self.of(*number) == node);
        (numbers, node)
    }
}

#[allow(dead_code)] // Each part acts until it is dropped.
pub(super) struct Stays(Option<OneProcessor>, Option<ThreadPolicy>);

impl Stays {
    pub fn on(node: Node) -> Self {
        Self(OneProcessor::among(&numa::processors(node)), ThreadPolicy::bind(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_chosen_on_the_node_that_has_most_of_them() {
        let stretches = vec![(Node(0), 0..10), (Node(1), 20..30), (Node(0), 30..40)];
        let nodes = Nodes::Several(stretches);
        let set = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<u64>>();
        assert_eq!(nodes.most(set(&[8, 9, 20, 39])), (set(&[8, 9, 39]), Some(Node(0))));
        assert_eq!(nodes.most(set(&[29, 28, 30])), (set(&[28, 29]), Some(Node(1))));
        assert_eq!(nodes.most(set(&[])), (set(&[]), None));
        assert_eq!(Nodes::One.most(set(&[8, 29])), (set(&[8, 29]), None));
        assert!(nodes.have(20) && !nodes.have(10) && Nodes::One.have(10));
        assert!(nodes.are_any() && !Nodes::Several(Vec::new()).are_any());
    }
}
