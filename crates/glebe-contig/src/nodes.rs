//! Tells which NUMA nodes pages are on.

use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::machine::numa::{self, Node};
use glebe_os::internal::sys::page_size;

use super::Contig;

impl Contig {
    /// Returns the positions in base pages and their NUMA nodes, in order. Neighbours on one node
    /// are one entry. If the machine has several nodes, missing pages are left out, and the call
    /// takes O(n): 0.1 µs a page. Source: move_pages(2).
    ///
    /// # Errors
    /// If the kernel refuses the question. It is not asked on a machine with one node.
    pub fn nodes(&self) -> Result<Vec<(Extent, Node)>, OsError> {
        let (grain, len) = (self.source().grain(), self.len());
        if let Some(node) = numa::only() {
            let whole = Extent::new(0, len.pages_down(page_size()).get());
            return Ok(whole.map(|pages| (pages, node)).into_iter().collect());
        }
        let count = len.pages_down(grain).get() as usize;
        let each = grain.bytes().pages_down(page_size()).get();
        let nodes = numa::nodes_of(self.mapping().addr(), count, grain)?;
        Ok(joined_nodes(placed(&nodes, each)))
    }
}

/// Joins adjacent entries on one node.
pub fn joined_nodes(all: impl IntoIterator<Item = (Extent, Node)>) -> Vec<(Extent, Node)> {
    let mut joined: Vec<(Extent, Node)> = Vec::new();
    for (pages, node) in all {
        let last = joined.last().filter(|last| last.1 == node && last.0.end() == pages.start());
        let both =
            last.and_then(|(first, _)| Extent::new(first.start(), first.len() + pages.len()));
        if both.is_some() {
            joined.pop();
        }
        joined.push((both.unwrap_or(pages), node));
    }
    joined
}

/// Returns the place of each page that has a node, for pages of `each` base pages.
fn placed(nodes: &[Option<Node>], each: u64) -> impl Iterator<Item = (Extent, Node)> + '_ {
    let place =
        move |(at, node): (u64, &Option<Node>)| Some((Extent::new(at * each, each)?, (*node)?));
    (0..).zip(nodes).filter_map(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Source};
    use glebe_os::units::Bytes;

    #[test]
    fn neighbours_on_one_node_are_joined_and_missing_pages_left_out() {
        let nodes = [0, 0, 1, 7, 7, 1].map(|n| (n < 7).then_some(Node(n)));
        let on = |start, len, node| (Extent::new(start, len).unwrap(), Node(node));
        assert_eq!(joined_nodes(placed(&nodes, 4)), [on(0, 8, 0), on(8, 4, 1), on(20, 4, 1)]);
        assert_eq!(joined_nodes(placed(&[], 4)), []);
        let parts = vec![on(0, 8, 0), on(8, 2, 0), on(12, 4, 0), on(16, 4, 1)];
        assert_eq!(joined_nodes(parts), [on(0, 10, 0), on(12, 4, 0), on(16, 4, 1)]);
    }

    #[test]
    fn memory_of_each_source_is_on_its_node() {
        let sizes = crate::smallest_hugetlb().map(Source::Hugetlb);
        for source in sizes.into_iter().chain([Source::Thp, Source::Plain]) {
            for node in numa::online() {
                let len = source.rounds_to().bytes().max(Bytes::mib(4));
                let memory = match Contig::options().source(source).node(node).build(len) {
                    Ok(memory) => memory,
                    Err(error) => {
                        println!("skipped: {source}, {node}: {error}");
                        continue;
                    }
                };
                let pages = memory.len().pages_down(page_size()).get();
                let whole = (Extent::new(0, pages).unwrap(), node);
                assert_eq!(memory.nodes().unwrap(), [whole], "{source}");
                assert_eq!(memory.certificate().nodes, [whole], "{source}");
                let addr = memory.mapping().addr();
                for at in [addr, addr + len.as_usize() / 2, addr + len.as_usize() - 1] {
                    assert_eq!(numa::node_at(at), Some(node), "{source}");
                }
            }
        }
    }

    #[test]
    fn a_preferred_node_comes_first_and_another_one_is_told() {
        let preferring = |node, len| {
            Contig::options().source(Source::Plain).prefer_node(Node(node)).build(Bytes::new(len))
        };
        for node in numa::online() {
            let memory = preferring(node.0, 1).unwrap();
            // A node may be without memory, and a container may deny the choice.
            match memory.why_not_better() {
                [] => assert_eq!(memory.nodes().unwrap()[0].1, node),
                why => assert!(why[0].starts_with(&format!("{node}: ")), "{why:?}"),
            }
        }
        assert!(matches!(preferring(1 << 20, 1), Err(Error::NoSuchNode { .. })));
        let Some(last) = numa::online().pop().filter(|node| node.0 > 0) else {
            return println!("skipped: the machine has one NUMA node");
        };
        let room = crate::populate::available_on(Some(last)).unwrap();
        if room > Bytes::gib(4) {
            return println!("skipped: {last} has too much memory to fill it");
        }
        match preferring(last.0, room.get() + (64 << 20)) {
            Ok(memory) => {
                let why = memory.why_not_better();
                assert!(!why.is_empty() && why[0].starts_with(&format!("{last}: ")), "{why:?}");
                assert!(memory.nodes().unwrap().iter().any(|(_, node)| *node != last));
            }
            Err(error) => println!("skipped: {error}"),
        }
    }
}
