//! [`Near`] knows the NUMA nodes of a reserve, and keeps the pages at hand of each node.
//!
//! If the memory is on several nodes, or its length may change, blocks are of the node of the
//! caller's processor first. The kernel tells the nodes when memory comes. If nothing holds a page,
//! it may be on another node later.
//!
//! A *slot* is the index of a node. Cost: a branch on one node; else some nanoseconds a block.

use std::iter;

use super::stock::Stock;
use super::Busy;
use crate::contig::{Contig, Node};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::machine::numa;

type NodesOf = fn(&Contig) -> Result<Vec<(Extent, Node)>, OsError>;

/// Tells a reserve its nodes; tests have another one than the machine's.
#[derive(Clone, Copy, Debug)]
pub struct NodeTeller {
    /// Returns the nodes with memory.
    pub machine: fn() -> Vec<Node>,
    /// Returns the nodes of the pages.
    pub pages: NodesOf,
    /// Returns the node of the caller's processor.
    pub here: fn() -> Option<Node>,
}

impl Default for NodeTeller {
    fn default() -> Self {
        Self { machine: numa::with_memory, pages: Contig::nodes, here: numa::here }
    }
}

#[derive(Debug)]
struct NodeSlot {
    node: Node,
    /// 1 if the reserve has memory of the node, else 0.
    is_used: MappedWord,
    stock: Stock,
}

#[derive(Debug)]
pub(super) struct Near {
    teller: NodeTeller,
    /// Empty if the memory is on one node, and stays so.
    slots: Box<[NodeSlot]>,
}

impl Near {
    /// `nodes` are those of the first memory. They may be empty if the kernel does not tell them.
    /// With `may_change`, other memory may come later, also in place of this.
    pub(super) fn new(teller: NodeTeller, nodes: &[(Extent, Node)], may_change: bool) -> Self {
        let several = nodes.iter().any(|(_, node)| *node != nodes[0].1);
        let machine = if several || may_change { (teller.machine)() } else { Vec::new() };
        let slot = |node| NodeSlot { node, is_used: MappedWord::new(0), stock: Stock::new() };
        let slots = machine.into_iter().map(slot);
        let near = Self { teller, slots: slots.collect() };
        match near.slots.len() {
            0 | 1 => Self { slots: Box::default(), ..near },
            _ => near,
        }
    }

    pub(super) fn teller(&self) -> NodeTeller {
        self.teller
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the slots of these nodes, which have all memory from now on. Leaves out nodes that
    /// were not there when the reserve was built.
    pub(super) fn slots_of(&self, nodes: &[(Extent, Node)]) -> Vec<(Extent, usize)> {
        self.slots.iter().for_each(|slot| slot.is_used.store(0, Ordering::Relaxed));
        let of = |(pages, node): &(Extent, Node)| {
            let slot = self.slots.iter().position(|slot| slot.node == *node)?;
            self.slots[slot].is_used.store(1, Ordering::Relaxed);
            Some((*pages, slot))
        };
        nodes.iter().filter_map(of).collect()
    }

    /// Returns the slot of the caller's node, or the first slot with memory if that node has none;
    /// `None` if nodes make no difference, or the kernel does not tell them.
    #[inline]
    pub(super) fn slot(&self) -> Option<usize> {
        match self.slots.is_empty() {
            true => None,
            false => self.slot_of_several(),
        }
    }

    #[inline(never)]
    fn slot_of_several(&self) -> Option<usize> {
        let here = (self.teller.here)();
        let is_used = |slot: &NodeSlot| slot.is_used.load(Ordering::Relaxed) != 0;
        let own = self.slots.iter().position(|slot| Some(slot.node) == here && is_used(slot));
        own.or_else(|| self.slots.iter().position(is_used))
    }
}

impl Busy {
    /// Returns the stock of the caller's node.
    #[inline]
    pub(super) fn stock(&self) -> &Stock {
        self.stock_of(self.near.slot())
    }

    #[inline]
    pub(super) fn stock_of(&self, slot: Option<usize>) -> &Stock {
        slot.map_or(&self.stock, |slot| &self.near.slots[slot].stock)
    }

    pub(super) fn stocks(&self) -> impl Iterator<Item = &Stock> {
        iter::once(&self.stock).chain(self.near.slots.iter().map(|slot| &slot.stock))
    }

    #[inline]
    pub(super) fn put_back(&self, page: u64) -> bool {
        self.stock().put_back(page) || !self.near.slots.is_empty() && self.put_back_far(page)
    }

    #[cold]
    fn put_back_far(&self, page: u64) -> bool {
        self.near.slots.iter().any(|slot| slot.stock.put_back(page))
    }
}

#[cfg(test)]
mod tests;
