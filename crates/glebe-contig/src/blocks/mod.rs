//! Implements the source [`Blocks`](super::Source::Blocks): a run of evacuated memory blocks.
//!
//! [`build`] takes the fewest suitable adjacent blocks off line, which moves their pages elsewhere.
//! Then it puts the blocks back as movable memory, and takes the huge pages of their frames. It
//! evacuates one more block if movable memory is short, because the kernel keeps a zone's last free
//! pages. On drop, blocks return to their zone, except the bank's.
//!
//! [`build`] refuses if too little memory would be left, or too much would be movable. A record
//! ([`record`]) lists changed blocks and their owners ([`owner`]), so that the next lock holder can
//! repair the blocks after a kill.
//!
//! Lengths are bytes. Lock: the hugetlb pools'. Source: admin-guide/mm/memory-hotplug.

pub mod bank;
mod choose;
mod draw;
pub(crate) mod glance;
mod owner;
mod plan;
mod record;
mod work;

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::PoisonError;
use std::time::Duration;

pub(super) use self::plan::Whose;
use self::plan::{BlockPlan, Wanted};
use self::record::Owner;
use self::work::{BlockWork, Stuck};
use super::hugetlb::{Builder, Kept};
use super::options::Options;
use super::pool::Place;
use super::{runs, smallest_hugetlb, Contig, Error, Node, Source};
use glebe_os::internal::sync::StaticMutex;
use glebe_os::internal::sys::files::file;
use glebe_os::internal::sys::machine::buddyinfo::free_in_zones;
use glebe_os::internal::sys::machine::hugetlb::sizes;
use glebe_os::internal::sys::machine::memory_block::Zone;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::{Bytes, PageSize};

const BLOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Most blocks that may resist; few, because the kernel logs each.
const STUCK_MAX: usize = 3;
const ATTEMPTS: u32 = 8;
const TAKEN: &str = "others took pages of evacuated memory blocks first; they were evacuated again";

pub(super) const WHY_NOT_PINNED: &str = "memory blocks are movable memory: a long-term pin would \
    move the pages out of it, and the run would be gone";

/// Blocks to give back on drop; a block that cannot go back stays on record.
#[derive(Debug)]
pub(super) struct HeldBlocks {
    blocks: Vec<u64>,
    place: Place,
    guard: ForkGuard,
    idle: Option<Kept>,
}

impl HeldBlocks {
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

    fn split_off(&mut self, kept: &[u64]) -> Self {
        let (own, rest) = self.blocks.iter().partition(|block| kept.contains(block));
        self.blocks = own;
        let (place, guard) = (self.place.clone(), self.guard);
        Self { blocks: rest, place, guard, idle: None }
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        // `idle` promises the pool's idle pages to mappings. If the promise ended before this
        // mapping's surplus pages were gone, the kernel would free the idle pages.
        drop(self.idle.take());
        if self.blocks.is_empty() || self.guard.is_child() {
            return;
        }
        match BlockWork::begin(&self.place, LOCK_PATIENCE) {
            Ok(mut work) => work.give_back_own(&self.blocks),
            Err(_) => leave(&self.blocks),
        }
    }
}

/// Blocks that could not be given back, for instance because another process held the lock for too
/// long. The next work of this process gives them back.
static LEFT: StaticMutex<Vec<(ForkGuard, u64)>> = StaticMutex::new(Vec::new());

fn with_left<T>(work: impl FnOnce(&mut Vec<(ForkGuard, u64)>) -> T) -> T {
    atfork::without_forks(|| work(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn leave(blocks: &[u64]) {
    let guard = ForkGuard::new();
    with_left(|left| left.extend(blocks.iter().map(|block| (guard, *block))));
}

/// Returns the blocks that this process left. A child does not own its parent's.
fn take_left() -> Vec<u64> {
    let left = with_left(std::mem::take).into_iter();
    left.filter(|(guard, _)| !guard.is_child()).map(|(_, block)| block).collect()
}

struct Call<'a> {
    options: &'a Options,
    builder: Builder<'a>,
    block: Bytes,
    held: HeldBlocks,
    stuck: Vec<Stuck>,
}

pub(super) fn build(options: &Options, len: Bytes) -> Result<Contig, Error> {
    if options.mappable {
        let why = "their pages are no part of one file; ask for no mappable memory";
        return Err(Error::NoBlocks { why: why.to_owned() });
    }
    let size = smallest_size()?;
    let builder = Builder::new(options, len, size)?;
    let block = work::machine_blocks()?.size();
    let held = HeldBlocks::new(&options.place);
    let mut call = Call { options, builder, block, held, stuck: Vec::new() };
    for _ in 0..ATTEMPTS {
        let Some((blocks, (wanted, others))) = call.evacuate(len)? else { continue };
        call.builder.take_all(Some(wanted))?;
        drop(others);
        let (within, in_hand) = (call.within(&blocks), std::mem::take(&mut call.builder.held));
        let mapping = match options.brick_of(size) {
            Some(brick) => call.builder.moved_to_bricks(in_hand, &within, brick)?,
            None => in_hand.run_within(&within, (call.builder.pages, 1), size)?,
        };
        let Some(mapping) = mapping else {
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

fn smallest_size() -> Result<PageSize, Error> {
    let none = || Error::NoSuchSize { size: page_size(), listed: sizes() };
    smallest_hugetlb().ok_or_else(none)
}

impl Call<'_> {
    /// Evacuates blocks and takes their pages into the pool. `None` asks for another attempt.
    fn evacuate(&mut self, len: Bytes) -> Result<Option<(Vec<u64>, draw::Drawn)>, Error> {
        let (options, builder) = (self.options, &mut self.builder);
        let mut work = BlockWork::begin(&options.place, options.patience_in_search())?;
        builder.notes.append(&mut work.notes);
        let stuck: Vec<u64> = self.stuck.iter().map(|stuck| stuck.block).collect();
        let of = match options.source {
            Some(Source::Blocks) => Whose::Anybodys,
            _ => Whose::Banks,
        };
        let (nodes, own) = (options.node_set(), &self.held.blocks[..]);
        let plan = plan::plan(&mut work, &Wanted { len, nodes, own, stuck: &stuck, of })?;
        builder.notes.extend_from_slice(&plan.passed_over);
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

fn check_idle(builder: &Builder<'_>, block: Bytes, plan: &BlockPlan) -> Result<(), Error> {
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

/// Turns a lack of memory, which other programs may have caused, into `None`: try again.
fn none_if_short<T>(error: Error) -> Result<Option<T>, Error> {
    match error {
        Error::Os(error) if error.kind() == ErrorKind::OutOfMemory => Ok(None),
        other => Err(other),
    }
}

pub(super) fn has_record(place: &Place) -> bool {
    let mut records = place.locks.iter().map(|lock| lock.with_file_name(owner::NAME));
    records.any(|path| file::link_metadata(&path).is_ok_and(|meta| meta.len() > 0))
}

pub(super) fn outlook(len: Bytes, node: Option<Node>) -> Result<[Result<(), Error>; 2], Error> {
    let options = node.into_iter().fold(Options::default(), Options::node);
    let work = BlockWork::begin(&options.place, BLOCK_PATIENCE)?;
    let mut builder = Builder::new(&options, len, smallest_size()?)?;
    Ok([Whose::Banks, Whose::Anybodys].map(|of| {
        let nodes = options.node_set();
        let wanted = Wanted { len, nodes, own: &[], stuck: &[], of };
        let plan = plan::outlook(&work, &wanted)?;
        builder.go_to(plan.node)?;
        check_idle(&builder, work.blocks.size(), &plan)
    }))
}

/// Mends memory blocks that killed processes left, and returns the repairs.
///
/// # Errors
/// [`Error::NoBlocks`]; if the lock cannot be had within `patience`; the kernel's errors.
pub fn mend_blocks(patience: Duration) -> Result<Vec<String>, Error> {
    let place = Place::default();
    match has_record(&place) {
        true => Ok(BlockWork::begin(&place, patience)?.notes),
        false => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests;
