//! The bank is a set of memory blocks that an administrator made movable, until `drop` or a reboot.
//! All programs may use the blocks until a process takes them by
//! [`Source::Blocks`](super::super::Source::Blocks).
//!
//! Lengths are bytes, rounded up to blocks. Changing a block takes 12 ms to 0.4 s. Lock:
//! `PoolLock`.

use super::plan::{check, outlook, plan, Wanted, Whose};
use super::record::{Line, Owner};
use super::work::{machine_blocks, BlockWork, Stuck};
use super::STUCK_MAX;
use crate::pool::{Place, PoolLock};
use crate::Error;
use glebe_os::internal::sys::machine::memory_block::{BlockState, MemoryBlock, MemoryBlocks, Zone};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// A memory block on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number.
    pub number: u64,
    /// Free bytes.
    pub free: Bytes,
    /// Bytes neither free nor in hugetlb pools.
    pub used: Bytes,
    /// Bytes in hugetlb pools.
    pub drawn: Bytes,
}

/// The machine's memory blocks. The bank's blocks are among the movable ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movable {
    /// Bytes of a block.
    pub block: Bytes,
    /// Movable bytes.
    pub movable: Bytes,
    /// Bytes on line.
    pub memory: Bytes,
}

/// The bank, and other blocks on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The bank's blocks in order of number.
    pub blocks: Vec<Block>,
    /// Blocks that living processes made movable.
    pub processes: Vec<Block>,
    /// Blocks without an owner, to be given back.
    pub ownerless: Vec<Block>,
    /// The machine's blocks.
    pub machine: Movable,
    /// Repairs made.
    pub notes: Vec<String>,
}

/// A change of the bank, made or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Numbers of the blocks, in the order of their change.
    pub blocks: Vec<u64>,
    /// Bytes of all blocks.
    pub len: Bytes,
    /// Repairs made, and reasons for fewer blocks.
    pub notes: Vec<String>,
}

fn begin() -> Result<BlockWork, Error> {
    BlockWork::begin(&Place::default(), PoolLock::PATIENCE)
}

/// Adds `len` bytes of blocks to the bank, in the fewest stretches. If fewer blocks were added,
/// [`Change::notes`] tells why. A `dry_run` adds none.
///
/// # Errors
/// [`Error::ZeroLength`], [`Error::NoBlocks`], [`Error::TooMuchMovable`],
/// [`Error::NoRoomToEvacuate`], [`Error::BlocksShort`], [`Error::BlocksStuck`]; errors of the lock
/// and the kernel.
pub fn add(len: Bytes, dry_run: bool) -> Result<Change, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    let mut work = begin()?;
    let size = work.blocks.size();
    let wanted = len.get().div_ceil(size.get());
    check(&work.blocks.list()?, wanted, size)?;
    let (mut added, mut stuck): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    while (added.len() as u64) < wanted {
        let missing = Bytes::new((wanted - added.len() as u64) * size.get());
        match add_stretch(&mut work, missing, &added, &mut stuck, dry_run) {
            Ok(stretch) => added.extend(stretch),
            Err(error) if added.is_empty() => return Err(error),
            Err(error) => {
                work.notes.push(error.to_string());
                break;
            }
        }
    }
    let len = Bytes::new(added.len() as u64 * size.get());
    Ok(Change { blocks: added, len, notes: work.notes })
}

/// Returns no block if a block resisted evacuation.
fn add_stretch(
    work: &mut BlockWork,
    missing: Bytes,
    added: &[u64],
    stuck: &mut Vec<u64>,
    dry_run: bool,
) -> Result<Vec<u64>, Error> {
    // A dry run does not record its blocks, so `out` excludes them from the next plan.
    let out: Vec<u64> = added.iter().chain(&*stuck).copied().collect();
    let want = Wanted { len: missing, nodes: &[], own: &[], stuck: &out, of: Whose::Kernels };
    if dry_run {
        return Ok(outlook(work, &want)?.blocks);
    }
    let stretch = plan(work, &want)?.blocks;
    let Err(failed) = work.evacuate(&stretch, Owner::Bank) else { return Ok(stretch) };
    let Stuck { block, error } = failed?;
    stuck.push(block);
    if stuck.len() > STUCK_MAX {
        return Err(Error::BlocksStuck { tried: std::mem::take(stuck), why: error });
    }
    work.notes.push(format!("memory block {block}: {error}"));
    Ok(Vec::new())
}

/// Gives `len` bytes of blocks, or all, back to the kernel, least used first. A block stays if it
/// has hugetlb pages or cannot be emptied.
///
/// # Errors
/// [`Error::NoBlocks`]; errors of the lock and the kernel.
pub fn drop(len: Option<Bytes>) -> Result<Change, Error> {
    let mut work = begin()?;
    let size = work.blocks.size();
    let mut bank = of_owner(&work, |owner| owner == Owner::Bank)?;
    bank.sort_by_key(|block| (block.drawn, block.used));
    let wanted = len.map_or(u64::MAX, |len| len.get().div_ceil(size.get()));
    let mut dropped = Vec::new();
    for block in bank {
        if dropped.len() as u64 >= wanted {
            break;
        }
        if block.drawn > Bytes::ZERO {
            let (number, drawn) = (block.number, block.drawn);
            work.notes.push(format!("memory block {number} stays: {drawn} of it are drawn"));
            continue;
        }
        match work.drop_from_bank(block.number) {
            Ok(()) => dropped.push(block.number),
            Err(error) => work.notes.push(format!("memory block {} stays: {error}", block.number)),
        }
    }
    let len = Bytes::new(dropped.len() as u64 * size.get());
    Ok(Change { blocks: dropped, len, notes: work.notes })
}

/// Repairs the record of changed blocks, and returns their use.
///
/// ```
/// match glebe_contig::bank::status() {
///     Ok(status) => println!("{} blocks of {}", status.blocks.len(), status.machine.block),
///     Err(error) => println!("{error}"), // not root, or the kernel takes no memory off line
/// }
/// ```
///
/// # Errors
/// [`Error::NoBlocks`]; errors of the lock and the kernel.
pub fn status() -> Result<Status, Error> {
    let work = begin()?;
    Ok(Status {
        machine: movable_of(&work.blocks)?,
        blocks: of_owner(&work, |owner| owner == Owner::Bank)?,
        processes: of_owner(&work, |owner| matches!(owner, Owner::Process(_)))?,
        ownerless: of_owner(&work, |owner| owner == Owner::Nobody)?,
        notes: work.notes,
    })
}

/// Returns how much memory is movable. Needs no root.
///
/// # Errors
/// [`Error::NoBlocks`]; errors of the kernel.
pub fn movable() -> Result<Movable, Error> {
    movable_of(&machine_blocks()?)
}

fn movable_of(blocks: &MemoryBlocks) -> Result<Movable, Error> {
    let (all, block) = (blocks.list()?, blocks.size());
    let sum = |is: fn(&MemoryBlock) -> bool| {
        Bytes::new(all.iter().filter(|block| is(block)).count() as u64 * block.get())
    };
    let movable = sum(|block| block.zone == Some(Zone::Movable));
    let memory = sum(|block| block.state == BlockState::Online);
    Ok(Movable { block, movable, memory })
}

fn of_owner(work: &BlockWork, is: impl Fn(Owner) -> bool) -> Result<Vec<Block>, Error> {
    let lines = work.book.lines();
    let mut blocks = Vec::new();
    for Line { block: number, .. } in lines.into_iter().filter(|line| is(line.owner)) {
        let seen = work.look(number, true)?;
        let bytes = |pages: u64| Pages::new(pages).bytes(page_size());
        let used = seen.movable + seen.unmarked + seen.fixed;
        let (free, used, drawn) = (bytes(seen.free), bytes(used), bytes(seen.pool));
        blocks.push(Block { number, free, used, drawn });
    }
    blocks.sort_by_key(|block| block.number);
    Ok(blocks)
}
