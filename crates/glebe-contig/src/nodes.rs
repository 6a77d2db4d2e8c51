//! Tells which NUMA nodes pages are on.

use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::machine::numa::{self, Node};
use glebe_os::internal::sys::page_size;

use super::{Contig, HeldBy, Proof};

impl Contig {
    /// Returns the positions in base pages and their NUMA nodes, in order. Neighbours on one node
    /// are one entry. If the machine has several nodes, missing pages are left out, and the first
    /// call takes O(n): 0.1 µs a page. Each call takes as long if nothing holds the pages, because
    /// the kernel may move these to another node. Source: move_pages(2).
    ///
    /// # Errors
    /// If the kernel refuses the question. It is not asked on a machine with one node.
    pub fn nodes(&self) -> Result<Vec<(Extent, Node)>, OsError> {
        if let Some(node) = numa::only() {
            let whole = Extent::new(0, self.len().pages_down(page_size()).get());
            return Ok(whole.map(|pages| (pages, node)).into_iter().collect());
        }
        self.nodes_told(|| self.ask_nodes())
    }

    /// Asks once, unless a page may move to another node.
    fn nodes_told(
        &self,
        ask: impl FnOnce() -> Result<Vec<(Extent, Node)>, OsError>,
    ) -> Result<Vec<(Extent, Node)>, OsError> {
        if let Some(known) = self.nodes.get() {
            return Ok(known.clone());
        }
        let told = ask()?;
        if !self.may_change_nodes() {
            let _ = self.nodes.set(told.clone());
        }
        Ok(told)
    }

    /// Returns true if nothing holds the pages, or other pages may take their place: a brick that
    /// comes back has the same frames only if the frames are visible.
    fn may_change_nodes(&self) -> bool {
        let is_of_hidden_bricks = self.mapping.bricks().is_some() && self.proof != Proof::Frames;
        self.held_by() == HeldBy::Nothing || is_of_hidden_bricks
    }

    fn ask_nodes(&self) -> Result<Vec<(Extent, Node)>, OsError> {
        let (grain, len) = (self.source().grain(), self.len());
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
    fn the_nodes_of_pages_that_stay_are_asked_once() {
        let page = page_size().bytes();
        let free = Contig::options().source(Source::Plain).pin(false).build(page).unwrap();
        let mut asked = 0;
        let mut ask = |of: &Contig| {
            let told = of.nodes_told(|| {
                asked += 1;
                Ok(vec![(Extent::new(0, 1).unwrap(), Node(3))])
            });
            (told.unwrap()[0].1, asked)
        };
        assert_eq!([ask(&free), ask(&free)], [(Node(3), 1), (Node(3), 2)], "may move");
        match Contig::options().source(Source::Plain).pin(true).build(page) {
            Ok(pinned) => assert_eq!([ask(&pinned), ask(&pinned)], [(Node(3), 3), (Node(3), 3)]),
            Err(error) => println!("skipped: {error}"),
        }
    }

    #[test]
    fn memory_of_each_source_is_on_its_node() {
        for source in sources() {
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

    fn sources() -> impl Iterator<Item = Source> {
        let huge = crate::smallest_hugetlb().map(Source::Hugetlb);
        huge.into_iter().chain([Source::Thp, Source::Plain])
    }

    /// Each set of two nodes, or the only one.
    fn sets() -> Vec<Vec<Node>> {
        let all = numa::with_memory();
        let pairs = all
            .iter()
            .enumerate()
            .flat_map(|(nth, one)| all[nth + 1..].iter().map(move |other| vec![*one, *other]));
        let pairs: Vec<Vec<Node>> = pairs.collect();
        if pairs.is_empty() {
            vec![all]
        } else {
            pairs
        }
    }

    #[test]
    fn memory_of_each_source_is_bound_to_its_nodes() {
        for (source, nodes) in sources().flat_map(|of| sets().into_iter().map(move |set| (of, set)))
        {
            let len = source.rounds_to().bytes().max(Bytes::mib(4));
            let reversed = nodes.iter().rev().copied().chain(nodes.clone());
            for options in [Contig::options(), Contig::options().mappable()] {
                let memory = match options.source(source).nodes(reversed.clone()).build(len) {
                    Ok(memory) => memory,
                    Err(error) => {
                        println!("skipped: {source}, {nodes:?}: {error}");
                        continue;
                    }
                };
                let of_pages = memory.nodes().unwrap();
                assert!(of_pages.iter().all(|(_, node)| nodes.contains(node)), "{of_pages:?}");
                let pages: u64 = of_pages.iter().map(|(pages, _)| pages.len()).sum();
                assert_eq!(pages, memory.len().pages_down(page_size()).get(), "{source}");
                let (addr, last) = (memory.mapping().addr(), memory.len().as_usize() - 1);
                for at in [addr, addr + last] {
                    assert_eq!(numa::bound_at(at).as_ref(), Some(&nodes), "{source}");
                }
            }
        }
        let free = Contig::options().source(Source::Plain).build(page_size().bytes()).unwrap();
        assert_eq!(numa::bound_at(free.mapping().addr()), None);
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
        let room = crate::populate::available_on(&[last]).unwrap();
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
