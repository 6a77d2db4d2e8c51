//! The bank: memory blocks that an administrator has made movable, and keeps so until they are
//! dropped or the machine starts anew. The whole system uses them, for programs and page cache,
//! until memory of the source [`Blocks`](super::super::Source::Blocks) is drawn from them.
//!
//! Lengths are bytes, rounded up to blocks. Each call takes the lock of the hugetlb pools; adding
//! and dropping evacuate each block, some 12 ms to 0.4 s.

use super::plan::{check, plan, Wanted, Whose};
use super::record::{Line, Owner};
use super::work::{BlockWork, Stuck};
use super::STUCK_MAX;
use crate::contig::pool::{Place, PoolLock};
use crate::contig::Error;
use crate::sys::memory_block::{State, Zone};
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// A memory block on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number.
    pub number: u64,
    /// What of it is in no use.
    pub free: Bytes,
    /// What programs and page cache use.
    pub used: Bytes,
    /// What is in hugetlb pools, drawn by programs.
    pub drawn: Bytes,
}

/// The bank, and what else is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The length of a block.
    pub block: Bytes,
    /// The blocks of the bank, in order of number.
    pub blocks: Vec<Block>,
    /// Blocks that living processes have made movable for themselves.
    pub processes: Vec<Block>,
    /// Blocks that nobody owns and that could not be given back yet.
    pub ownerless: Vec<Block>,
    /// All memory that is movable, by the bank or by others.
    pub movable: Bytes,
    /// All memory on line.
    pub memory: Bytes,
    /// What was mended on the way.
    pub notes: Vec<String>,
}

/// What a change of the bank did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The blocks, in the order in which they were taken.
    pub blocks: Vec<u64>,
    /// Their length together.
    pub len: Bytes,
    /// What was mended on the way, and why there are no more.
    pub notes: Vec<String>,
}

fn begin() -> Result<BlockWork, Error> {
    BlockWork::begin(&Place::default(), PoolLock::PATIENCE)
}

/// Adds blocks of together at least `len` to the bank, in as few stretches as there are. Where
/// fewer can be had, those, with a note of why. With `dry_run` nothing is touched.
///
/// # Errors
/// [`Error::NoBlocks`], [`Error::TooMuchMovable`], [`Error::NoRoomToEvacuate`]; why not one block
/// can be had.
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

/// Adds the longest stretch of up to `missing` bytes; none where a block of it resisted.
fn add_stretch(
    work: &mut BlockWork,
    missing: Bytes,
    added: &[u64],
    stuck: &mut Vec<u64>,
    dry_run: bool,
) -> Result<Vec<u64>, Error> {
    // What a dry run adds must be left out too.
    let out: Vec<u64> = added.iter().chain(&*stuck).copied().collect();
    let want = Wanted { len: missing, node: None, own: &[], stuck: &out, of: Whose::Kernels };
    let stretch = plan(work, &want)?.blocks;
    if dry_run {
        return Ok(stretch);
    }
    let Err(failed) = work.evacuate(&stretch, Owner::Bank) else { return Ok(stretch) };
    let Stuck { block, error } = failed?;
    stuck.push(block);
    if stuck.len() > STUCK_MAX {
        return Err(Error::BlocksStuck { tried: std::mem::take(stuck), why: error });
    }
    work.notes.push(format!("memory block {block}: {error}"));
    Ok(Vec::new())
}

/// Drops blocks of together at least `len` out of the bank, or all: they are the kernel's again.
/// Those with the fewest pages in use go first; one of which pages are drawn stays, and is named.
///
/// # Errors
/// [`Error::NoBlocks`]; if the lock cannot be had.
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

/// What the bank has, and who uses it. Mends what killed processes left.
///
/// ```
/// match glebe::contig::bank::status() {
///     Ok(status) => println!("{} blocks of {}", status.blocks.len(), status.block),
///     Err(error) => println!("{error}"), // not root, or the kernel takes no memory off line
/// }
/// ```
///
/// # Errors
/// [`Error::NoBlocks`]; if the lock cannot be had.
pub fn status() -> Result<Status, Error> {
    let work = begin()?;
    let (all, block) = (work.blocks.list()?, work.blocks.size());
    let bytes = |blocks: usize| Bytes::new(blocks as u64 * block.get());
    let movable = all.iter().filter(|block| block.zone == Some(Zone::Movable)).count();
    let online = all.iter().filter(|block| block.state == State::Online).count();
    Ok(Status {
        block,
        blocks: of_owner(&work, |owner| owner == Owner::Bank)?,
        processes: of_owner(&work, |owner| matches!(owner, Owner::Process(_)))?,
        ownerless: of_owner(&work, |owner| owner == Owner::Nobody)?,
        movable: bytes(movable),
        memory: bytes(online),
        notes: work.notes,
    })
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
