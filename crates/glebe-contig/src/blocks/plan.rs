//! Plans which memory blocks a call takes.
//!
//! A frame without page flags is the kernel's, or free in a per-CPU list. If such frames hinder
//! `plan`, it shortens the lists. If that does not help, it empties the lists, by taking the block
//! with the fewest such frames off line and on again. Lengths are bytes.

use super::choose::{Disturbs, Search};
use super::work::BlockWork;
use crate::Error;
use glebe_os::internal::sys::machine::buddyinfo::free_in_zones;
use glebe_os::internal::sys::machine::kpage::Occupancy;
use glebe_os::internal::sys::machine::meminfo;
use glebe_os::internal::sys::machine::memory_block::{BlockState, MemoryBlock, Zone};
use glebe_os::internal::sys::machine::numa::Node;
use glebe_os::internal::sys::machine::zones;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// At least `1 / MARGIN_SHARE` of the available memory must be left.
const MARGIN_SHARE: u64 = 10;
const MARGIN_MIN: Bytes = Bytes::gib(1);
/// At most `1 / MOVABLE_SHARE` of the memory blocks on line may be movable.
const MOVABLE_SHARE: u64 = 4;
/// The kernel keeps about `1 / KEPT_SHARE` of the movable memory free.
const KEPT_SHARE: u64 = 256;
const KEPT_MIN: Bytes = Bytes::mib(8);

pub(super) struct Wanted<'a> {
    pub len: Bytes,
    /// Nodes of the blocks; any if empty.
    pub nodes: &'a [Node],
    /// Blocks left by earlier attempts, oldest first.
    pub own: &'a [u64],
    pub stuck: &'a [u64],
    pub of: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Blocks of the bank, other movable blocks, and blocks of the kernel.
    Anybodys,
    /// Only blocks of the bank, which an administrator allowed.
    Banks,
    /// Only blocks of the kernel, to fill the bank; fewer than wanted suffice.
    Kernels,
}

#[derive(Debug, Default)]
pub(super) struct BlockPlan {
    pub blocks: Vec<u64>,
    pub node: Option<Node>,
    /// Extra block, put on line last. The hugetlb pool takes pages free for longest, so the kernel
    /// keeps this block's pages free.
    pub slack: Option<u64>,
    /// Why blocks of the bank were passed over.
    pub passed_over: Vec<String>,
}

pub(super) fn plan(work: &mut BlockWork, wanted: &Wanted<'_>) -> Result<BlockPlan, Error> {
    let mut planned = plan_once(work, wanted)?;
    if matches!(planned, Err((_, Some(_)))) {
        zones::empty_processor_lists();
        planned = plan_once(work, wanted)?;
    }
    if let Err((_, Some(likely))) = planned {
        if let Err(error) = work.cycle(likely) {
            work.notes.push(format!("memory block {likely}: {error}"));
        }
        planned = plan_once(work, wanted)?;
    }
    planned.map_err(|(error, _)| error)
}

pub(super) fn outlook(work: &BlockWork, wanted: &Wanted<'_>) -> Result<BlockPlan, Error> {
    plan_once(work, wanted)?.map_err(|(error, _)| error)
}

pub(super) fn check(all: &[MemoryBlock], more: u64, size: Bytes) -> Result<(), Error> {
    check_share(all, more, size)?;
    let taken = Bytes::new(more.saturating_mul(size.get()));
    room_in(meminfo::available()?, taken, Bytes::ZERO)
}

/// The refusal, and the block most likely to be emptied.
type Short = (Error, Option<u64>);

fn plan_once(work: &BlockWork, wanted: &Wanted<'_>) -> Result<Result<BlockPlan, Short>, Error> {
    let (size, all) = (work.blocks.size(), work.blocks.list()?);
    let count = wanted.len.get().div_ceil(size.get());
    let mut candidates = work.candidates(&all, wanted.own, wanted.nodes)?;
    candidates.retain(|candidate| {
        let may = match wanted.of {
            Whose::Anybodys => true,
            Whose::Banks => candidate.disturbs == Disturbs::Bank,
            Whose::Kernels => candidate.disturbs == Disturbs::Kernel,
        };
        may && !wanted.stuck.contains(&candidate.number)
    });
    let look = |number| work.look(number, false);
    let mut search = Search::new(candidates, &look);
    let mut found = search.stretch(count, &[])?;
    let for_bank = wanted.of == Whose::Kernels;
    let longest = if found.is_none() { search.longest()? } else { 0 };
    if for_bank && longest > 0 {
        found = search.stretch(longest, &[])?;
    }
    let Some((blocks, mut occupied)) = found else {
        let longest = Bytes::new(longest.saturating_mul(size.get()));
        let fixed = search.count(|seen| !seen.is_movable());
        let pool = search.count(|seen| seen.pool > 0);
        let (wanted, all) = (wanted.len, all.len() as u64);
        let error = Error::BlocksShort { wanted, longest, size, all, fixed, pool };
        return Ok(Err((error, search.most_likely())));
    };
    let why = |(number, seen): (u64, Occupancy)| {
        let (pool, fixed) = (seen.pool, seen.fixed);
        format!("memory block {number}: {pool} pages of hugetlb pools, {fixed} immovable pages")
    };
    let passed_over = search.passed_over(&blocks).into_iter().map(why).collect();
    let whole = Bytes::new(blocks.len() as u64 * size.get());
    let node_of = |number: u64| all.iter().find(|block| block.number == number)?.node;
    let node = blocks.first().and_then(|first| node_of(*first));
    // Other programs fill the oldest block first, so `slack`, to be emptied, is the oldest of `own`
    // not in `blocks`. Other calls may own or await pages of hugetlb pools in such a block: then it
    // does not fit.
    let is_left = |own: &&u64| !blocks.contains(own) && node_of(**own) == node;
    let left: Vec<u64> = wanted.own.iter().filter(is_left).copied().collect();
    let is_again = !wanted.own.is_empty();
    let mut slack = if left.len() > 1 { search.first_that_fits(&left)? } else { None };
    if slack.is_none() && !for_bank && (is_again || needs_slack(whole, wanted.len, node)?) {
        let taken: Vec<u64> = blocks.iter().chain(wanted.own).copied().collect();
        if let Some((more, of_it)) = search.on(node).stretch(1, &taken)? {
            slack = more.first().copied();
            occupied += of_it;
        }
    }
    let becomes_movable = |number: &&u64| {
        all.iter().any(|block| block.number == **number && block.zone != Some(Zone::Movable))
    };
    let more = blocks.iter().chain(&slack).filter(becomes_movable).count() as u64;
    check_share(&all, more, size)?;
    room_in(meminfo::available()?, whole, Pages::new(occupied).bytes(page_size()))?;
    Ok(Ok(BlockPlan { blocks, node, slack, passed_over }))
}

fn needs_slack(blocks: Bytes, len: Bytes, node: Option<Node>) -> Result<bool, Error> {
    let free = free_in_zones(Zone::Movable.as_str(), node)?;
    let kept = KEPT_MIN + Bytes::new((free.get() + blocks.get()) / KEPT_SHARE);
    Ok(free + blocks < len + kept)
}

fn check_share(all: &[MemoryBlock], more: u64, size: Bytes) -> Result<(), Error> {
    let online = all.iter().filter(|block| block.state == BlockState::Online).count() as u64;
    let movable = all.iter().filter(|block| block.zone == Some(Zone::Movable)).count() as u64;
    let limit = online / MOVABLE_SHARE;
    if more == 0 || movable + more <= limit {
        return Ok(());
    }
    let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(size.get()));
    let (more, movable, limit) = (bytes(more), bytes(movable), bytes(limit));
    Err(Error::TooMuchMovable { more, movable, limit })
}

fn room_in(available: Bytes, taken: Bytes, occupied: Bytes) -> Result<(), Error> {
    let margin = MARGIN_MIN.max(Bytes::new(available.get() / MARGIN_SHARE));
    match taken.checked_add(margin).is_some_and(|needed| needed <= available) {
        true => Ok(()),
        false => Err(Error::NoRoomToEvacuate { taken, occupied, available, margin }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(online: u64, movable: u64) -> Vec<MemoryBlock> {
        let zone = |number| if number < movable { Zone::Movable } else { Zone::Normal };
        let block = |number| MemoryBlock {
            number,
            state: BlockState::Online,
            zone: Some(zone(number)),
            node: Some(Node(0)),
        };
        (0..online).map(block).collect()
    }

    #[test]
    fn a_quarter_of_memory_may_be_movable() {
        let size = Bytes::gib(2); // as large as blocks get
        assert!(check_share(&blocks(16, 2), 2, size).is_ok());
        let refused = check_share(&blocks(16, 2), 3, size).unwrap_err().to_string();
        let figures = ["6 GiB", "4 GiB", "8 GiB"];
        assert!(figures.iter().all(|figure| refused.contains(figure)), "{refused}");
        assert!(check_share(&blocks(16, 9), 0, size).is_ok(), "what is movable already is no more");
        assert!(check_share(&blocks(3, 0), 1, size).is_err());
        let off = |block| MemoryBlock { state: BlockState::Offline, zone: None, ..block };
        let half_off: Vec<MemoryBlock> =
            blocks(16, 0).into_iter().map(|b| if b.number < 8 { off(b) } else { b }).collect();
        assert!(check_share(&half_off, 3, size).is_err());
    }

    #[test]
    fn a_tenth_and_at_least_a_gib_is_left() {
        let gib = Bytes::gib;
        assert!(room_in(gib(3), gib(2), Bytes::ZERO).is_ok());
        assert!(room_in(gib(3), gib(2) + Bytes::new(1), Bytes::ZERO).is_err());
        assert!(room_in(gib(100), gib(90), gib(1)).is_ok());
        let refused = room_in(gib(100), gib(91), gib(5)).unwrap_err().to_string();
        let figures = ["91 GiB", "5 GiB", "100 GiB", "10 GiB"];
        assert!(figures.iter().all(|figure| refused.contains(figure)), "{refused}");
        assert!(room_in(Bytes::ZERO, Bytes::new(u64::MAX), Bytes::ZERO).is_err());
    }
}
