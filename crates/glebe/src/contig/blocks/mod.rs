//! The source [`Blocks`](super::Source::Blocks): one run out of evacuated memory blocks.
//!
//! The fewest blocks side by side that hold the length and nothing that cannot be moved are taken
//! off line, which moves what is in them elsewhere, and put back as movable memory; then the huge
//! pages of exactly those frames are taken, and the frames read. One more block is evacuated for
//! the time of it where movable memory has nothing else free: the kernel keeps the last pages of a
//! zone. When the memory is dropped its blocks go back to the zone where they were.
//!
//! Nothing is touched where too little memory would be left to evacuate into, or where too much
//! would be movable: the kernel cannot use movable memory for itself. What is under way, and which
//! blocks are movable because of us, is on record ([`record`]) with an owner that shows that it
//! lives ([`owner`]); the next holder of the lock ends what a killed process left.
//!
//! Lengths are bytes, blocks have numbers. Evacuating costs some 12 ms for the first block, 1 ms
//! for each further one, and 12 µs for every page in use. Lock: that of the hugetlb pools, while
//! blocks are moved and pages are taken, not while pages are zeroed. Source:
//! admin-guide/mm/memory-hotplug.

pub mod bank;
mod choose;
mod draw;
mod owner;
mod plan;
mod record;
mod work;

use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;

pub(super) use self::plan::Whose;
use self::plan::{Plan, Wanted};
use self::record::Owner;
use self::work::{BlockWork, Stuck};
use super::hugetlb::{Builder, Kept};
use super::options::Options;
use super::pool::Place;
use super::{runs, smallest_hugetlb, Contig, Error, Source};
use crate::sys::buddyinfo::free_in_zones;
use crate::sys::file;
use crate::sys::fork::ForkGuard;
use crate::sys::hugetlb::sizes;
use crate::sys::memory_block::Zone;
use crate::sys::page_size;
use crate::units::{Bytes, PageSize};

/// How long the kernel may try to empty one block.
const BLOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for the lock when blocks are given back.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Blocks that may resist before the call is given up: the kernel logs each.
const STUCK_MAX: usize = 3;
/// Attempts to have the pages of blocks that were evacuated.
const ATTEMPTS: u32 = 8;
/// What is told of an attempt that is made again.
const TAKEN: &str = "others took pages of evacuated memory blocks first; they were evacuated again";

/// Why a long-term pin is not to be had.
pub(super) const WHY_NOT_PINNED: &str = "memory blocks are movable memory: a long-term pin would \
    move the pages out of it, and the run would be gone";

/// Blocks that are movable for one [`Contig`](super::Contig). They go back when this is dropped;
/// what cannot go stays on record, and the next that takes the lock tries again.
#[derive(Debug)]
pub(super) struct Held {
    blocks: Vec<u64>,
    place: Place,
    guard: ForkGuard,
    idle: Option<Kept>,
}

impl Held {
    fn new(place: &Place) -> Self {
        let (blocks, place, guard) = (Vec::new(), place.clone(), ForkGuard::new());
        Self { blocks, place, guard, idle: None }
    }

    fn add(&mut self, blocks: &[u64], work: &BlockWork) {
        for block in blocks {
            let is_banks = work.book.of(*block).is_some_and(|line| line.owner == Owner::Bank);
            if !is_banks && !self.blocks.contains(block) {
                self.blocks.push(*block);
            }
        }
    }

    /// Splits off the blocks that are not in `kept`.
    fn split_off(&mut self, kept: &[u64]) -> Self {
        let (own, rest) = self.blocks.iter().partition(|block| kept.contains(block));
        self.blocks = own;
        let (place, guard) = (self.place.clone(), self.guard);
        Self { blocks: rest, place, guard, idle: None }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The pages have gone: none of this memory is surplus any more.
        drop(self.idle.take());
        if self.blocks.is_empty() || self.guard.is_child() {
            return;
        }
        let work = BlockWork::begin(&self.place, LOCK_PATIENCE);
        let Ok(mut work) = work else { return };
        let this = work.book.this_process(&work.lock).ok();
        for block in &self.blocks {
            let owner = work.book.of(*block).map(|line| line.owner);
            // Not one that was mended meanwhile, and is another's now.
            if owner == Some(Owner::Nobody) || owner == this {
                let _ = work.give_back(*block);
            }
        }
    }
}

/// What one call wants, and what it has learnt.
struct Call<'a> {
    options: &'a Options,
    builder: Builder<'a>,
    /// The length of a block.
    block: Bytes,
    held: Held,
    stuck: Vec<Stuck>,
}

/// Maps `len` bytes, whole huge pages, in one run.
pub(super) fn build(options: &Options, len: Bytes) -> Result<Contig, Error> {
    if options.mappable {
        let why = "their pages are private memory, not a file's; ask for no mappable memory";
        return Err(Error::NoBlocks { why: why.to_owned() });
    }
    let size = smallest_size()?;
    let builder = Builder::new(options, len, size)?;
    let block = work::machine_blocks()?.size();
    let held = Held::new(&options.place);
    let mut call = Call { options, builder, block, held, stuck: Vec::new() };
    for _ in 0..ATTEMPTS {
        let Some((blocks, (wanted, others))) = call.evacuate(len)? else { continue };
        call.builder.take_all(Some(wanted))?;
        drop(others);
        let (within, in_hand) = (call.within(&blocks), std::mem::take(&mut call.builder.held));
        let Some(mapping) = in_hand.run_within(&within, call.builder.pages, size)? else {
            call.builder.notes.push(TAKEN.to_owned());
            continue;
        };
        let runs = runs::read(&mapping, size)?;
        call.held.idle = call.builder.kept_idle()?;
        drop(call.held.split_off(&blocks));
        let (blocks, why_not_better) = (Some(call.held), call.builder.notes);
        return Ok(Contig { blocks, why_not_better, ..Contig::of(Source::Blocks, mapping, runs) });
    }
    Err(Error::BlocksTaken { attempts: ATTEMPTS })
}

/// The huge pages that memory of blocks is made of.
fn smallest_size() -> Result<PageSize, Error> {
    let none = || Error::NoSuchSize { size: page_size(), listed: sizes() };
    smallest_hugetlb().ok_or_else(none)
}

impl Call<'_> {
    /// Evacuates blocks and has their pages promised; `None`: try again.
    fn evacuate(&mut self, len: Bytes) -> Result<Option<(Vec<u64>, draw::Drawn)>, Error> {
        let (options, builder) = (self.options, &mut self.builder);
        let mut work = BlockWork::begin(&options.place, options.patience())?;
        builder.notes.append(&mut work.notes);
        let stuck: Vec<u64> = self.stuck.iter().map(|stuck| stuck.block).collect();
        let of = match options.source {
            Some(_) => Whose::Anybodys,
            None => Whose::Banks,
        };
        let (node, own) = (options.node, &self.held.blocks[..]);
        let plan = plan::plan(&mut work, &Wanted { len, node, own, stuck: &stuck, of })?;
        builder.go_to(plan.node)?;
        check_idle(builder, self.block, &plan)?;
        builder.promise_idle()?;
        let all: Vec<u64> = plan.blocks.iter().chain(&plan.slack).copied().collect();
        let owner = work.book.this_process(&work.lock)?;
        match work.empty(&all, owner) {
            Ok(()) => {}
            Err(Err(error)) => return Err(error),
            Err(Ok(stuck)) => {
                builder.notes.push(format!("memory block {}: {}", stuck.block, stuck.error));
                self.stuck.push(stuck);
                return match self.stuck.len() > STUCK_MAX {
                    true => Err(self.all_stuck()),
                    false => Ok(None),
                };
            }
        }
        self.held.add(&all, &work);
        let size = self.builder.pool.size();
        let free = free_in_zones(Zone::Movable.as_str(), plan.node)?.pages_up(size).get();
        let most = free + (all.len() as u64 + 1) * self.block.pages_up(size).get();
        let within = self.within(&plan.blocks);
        let drawn = draw::draw(&work, &self.builder, &plan, &within, most);
        let drawn = drawn.inspect_err(|_| work.bring_back(&all, false)).or_else(none_if_short)?;
        if drawn.is_none() {
            self.builder.notes.push(TAKEN.to_owned());
        }
        Ok(drawn.map(|drawn| (plan.blocks, drawn)))
    }

    /// The huge pages of blocks side by side.
    fn within(&self, blocks: &[u64]) -> Range<u64> {
        let each = self.block.get() / self.builder.pool.size().bytes().get();
        let first = blocks.first().copied().unwrap_or(0);
        first * each..(first + blocks.len() as u64) * each
    }

    fn all_stuck(&mut self) -> Error {
        let tried = self.stuck.iter().map(|stuck| stuck.block).collect();
        match self.stuck.pop() {
            Some(Stuck { error, .. }) => Error::BlocksStuck { tried, why: error },
            None => Error::BlocksTaken { attempts: ATTEMPTS },
        }
    }
}

/// Refuses where more idle pages would be kept from others than the blocks of `plan` hold.
fn check_idle(builder: &Builder<'_>, block: Bytes, plan: &Plan) -> Result<(), Error> {
    let (size, blocks) = (builder.pool.size(), plan.blocks.len() as u64);
    let (idle, hold) = (builder.idle_to_keep()?, blocks * block.pages_down(size).get());
    if idle <= hold {
        return Ok(());
    }
    let why = format!(
        "{idle} pages of {} lie idle in the hugetlb pool, more than the {hold} that the blocks \
         hold, and nobody else could use them while this memory lives; take memory of the pool, or \
         shrink the pool first",
        size.bytes()
    );
    Err(Error::NoBlocks { why })
}

/// Of a refusal for want of memory, that others took it meanwhile: pages of the pool, or what the
/// kernel needs to put a block back on line.
fn none_if_short<T>(error: Error) -> Result<Option<T>, Error> {
    match error {
        Error::Os(error) if error.kind() == ErrorKind::OutOfMemory => Ok(None),
        other => Err(other),
    }
}

/// Whether blocks are on record, of the bank or of processes: without any there is no bank.
pub(super) fn has_record(place: &Place) -> bool {
    let mut records = place.locks.iter().map(|lock| lock.with_file_name(owner::NAME));
    records.any(|path| file::link_metadata(&path).is_ok_and(|meta| meta.len() > 0))
}

/// Whether blocks for `len` could be evacuated now: of the bank, and of anybody. Mends what killed
/// processes left, and touches nothing else.
///
/// # Errors
/// [`Error::NoBlocks`]; if the lock cannot be had.
pub(super) fn outlook(len: Bytes) -> Result<[Result<(), Error>; 2], Error> {
    let options = Options::default();
    let work = BlockWork::begin(&options.place, BLOCK_PATIENCE)?;
    let mut builder = Builder::new(&options, len, smallest_size()?)?;
    Ok([Whose::Banks, Whose::Anybodys].map(|of| {
        let wanted = Wanted { len, node: None, own: &[], stuck: &[], of };
        let plan = plan::outlook(&work, &wanted)?;
        builder.go_to(plan.node)?;
        check_idle(&builder, work.blocks.size(), &plan)
    }))
}

/// Ends what killed processes left of memory blocks: puts back on line what is off line, and gives
/// movable blocks without an owner back to the kernel. Returns what was done. Costs one look at a
/// file where there is nothing to do, or the caller is not root.
///
/// # Errors
/// If the lock cannot be had within `patience`, or the record cannot be read.
pub fn mend_blocks(patience: Duration) -> Result<Vec<String>, Error> {
    let place = Place::default();
    match has_record(&place) {
        true => Ok(BlockWork::begin(&place, patience)?.notes),
        false => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests;
