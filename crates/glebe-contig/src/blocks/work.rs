//! [`BlockWork`] changes memory blocks, under the lock of the hugetlb pools.
//!
//! A call records each change first, so that the next holder of the lock can undo it. Blocks with
//! hugetlb pages stay, because the pages would be moved or lost.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use super::choose::{Candidate, Disturbs};
use super::owner::Book;
use super::record::{Line, Owner};
use super::{leave, take_left, BLOCK_PATIENCE};
use crate::pool::{Place, PoolLock};
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::sys::machine::hugetlb::{self, Pool};
use glebe_os::internal::sys::machine::kpage::{Frames, Occupancy};
use glebe_os::internal::sys::machine::memory_block::{BlockState, MemoryBlock, MemoryBlocks, Zone};
use glebe_os::internal::sys::machine::numa::Node;

const SAMPLE_EVERY: u64 = 1 << 11;
const SURPLUS_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Stuck {
    pub block: u64,
    pub error: OsError,
}

#[derive(Debug)]
pub(super) struct BlockWork {
    pub lock: PoolLock,
    pub blocks: MemoryBlocks,
    pub book: Book,
    pub frames: Frames,
    pub notes: Vec<String>,
    /// How long this work may still wait for surplus pages to leave.
    surplus_patience: Duration,
}

impl BlockWork {
    pub fn begin(place: &Place, patience: Duration) -> Result<Self, Error> {
        let no = |why: String| Error::NoBlocks { why };
        let blocks = machine_blocks()?;
        if !blocks.is_writable() {
            return Err(no("only root may, and /sys must be writable".to_owned()));
        }
        let frames = Frames::open().map_err(|error| no(format!("{error}; CAP_SYS_ADMIN")))?;
        let lock = PoolLock::of(place, patience)?;
        let (book, ignored) = Book::open(&lock)?;
        let mut notes = lock.notes().to_vec();
        notes.extend(ignored);
        let surplus_patience = SURPLUS_PATIENCE;
        let mut work = Self { lock, blocks, book, frames, notes, surplus_patience };
        work.mend()?;
        work.give_back_own(&take_left());
        Ok(work)
    }

    pub fn candidates(
        &self,
        all: &[MemoryBlock],
        own: &[u64],
        nodes: &[Node],
    ) -> Result<Vec<Candidate>, Error> {
        let mut candidates = Vec::new();
        for (at, block) in all.iter().enumerate() {
            let line = self.book.of(block.number);
            let is_free = line.is_none_or(|l| l.owner == Owner::Bank || own.contains(&l.block));
            let (true, Some(zone), BlockState::Online) = (is_free, block.zone, block.state) else {
                continue;
            };
            let is_on = nodes.is_empty() || block.node.is_some_and(|node| nodes.contains(&node));
            if !is_on || is_border(all, at) {
                continue;
            }
            let disturbs = match (line.map(|line| line.owner), zone) {
                (Some(Owner::Bank), _) => Disturbs::Bank,
                (_, Zone::Movable) => Disturbs::Movable,
                (_, Zone::Normal) => Disturbs::Kernel,
                (_, Zone::Dma | Zone::Dma32) => Disturbs::Devices,
            };
            let first = self.blocks.first_frame(block.number);
            let sample = self.frames.sample(first, self.blocks.pages(), SAMPLE_EVERY)?;
            candidates.push(Candidate { number: block.number, node: block.node, disturbs, sample });
        }
        Ok(candidates)
    }

    /// Counts a block's pages. Unless `all`, stops soon after an immovable page.
    pub fn look(&self, number: u64, all: bool) -> Result<Occupancy, Error> {
        Ok(self.frames.occupancy(self.blocks.first_frame(number), self.blocks.pages(), all)?)
    }

    /// Makes `numbers` movable memory; after a failure, gives all back.
    pub fn evacuate(&mut self, numbers: &[u64], owner: Owner) -> Result<(), Result<Stuck, Error>> {
        self.empty(numbers, owner)?;
        for number in numbers {
            if let Err(error) = self.blocks.put_on_line(*number, true) {
                self.bring_back(numbers, owner == Owner::Bank);
                return Err(Ok(Stuck { block: *number, error }));
            }
        }
        Ok(())
    }

    /// Takes `numbers` off line; after a failure, gives all back.
    pub fn empty(&mut self, numbers: &[u64], owner: Owner) -> Result<(), Result<Stuck, Error>> {
        let is_new = |number: &&u64| self.book.of(**number).is_none();
        let new: Vec<u64> = numbers.iter().filter(is_new).copied().collect();
        let emptied = self.take_off_line(numbers, owner);
        if emptied.is_err() {
            self.bring_back(&new, true);
            self.bring_back(numbers, false);
        }
        emptied
    }

    fn take_off_line(&mut self, numbers: &[u64], owner: Owner) -> Result<(), Result<Stuck, Error>> {
        for number in numbers {
            self.note_down(*number, owner).map_err(Err)?;
        }
        for number in numbers {
            let taken = self.unplug(*number);
            taken.map_err(|error| Ok(Stuck { block: *number, error }))?;
        }
        Ok(())
    }

    /// Takes a block off line, unless a program that ignores the lock has taken pages of the block
    /// into a pool since it was chosen.
    pub fn unplug(&self, number: u64) -> Result<(), OsError> {
        let (first, len) = (self.blocks.first_frame(number), self.blocks.pages());
        if self.frames.occupancy(first, len, true)?.pool > 0 {
            let why = "it holds pages of hugetlb pools";
            let error = io::Error::new(ErrorKind::ResourceBusy, why);
            return Err(OsError::new("take off line", format!("memory block {number}"), error));
        }
        self.blocks.take_off_line(number, BLOCK_PATIENCE)
    }

    /// Gives `numbers` back after a failure. The bank keeps its blocks, except with `disown`.
    pub fn bring_back(&mut self, numbers: &[u64], disown: bool) {
        for number in numbers {
            if let (true, Some(line)) = (disown, self.book.of(*number)) {
                let _ = self.book.set(Line { owner: Owner::Nobody, ..line });
            }
            let _ = self.give_back(*number);
        }
    }

    /// Empties a block and puts it back, which empties processors' lists of free pages.
    pub fn cycle(&mut self, number: u64) -> Result<(), Error> {
        let owner = self.book.this_process(&self.lock)?;
        self.note_down(number, owner)?;
        let emptied = self.unplug(number);
        self.give_back(number)?;
        Ok(emptied?)
    }

    pub fn note_down(&mut self, number: u64, owner: Owner) -> Result<(), Error> {
        let line = match self.book.of(number) {
            Some(line) if line.owner == Owner::Bank => return Ok(()),
            Some(line) => Line { owner, ..line },
            None => {
                let zone = self.blocks.read(number)?.zone.unwrap_or(Zone::Normal);
                Line { block: number, zone, owner }
            }
        };
        Ok(self.book.set(line)?)
    }

    /// Returns a block to its old zone and removes it from the record. On failure, the block stays
    /// on record without an owner. A block of the bank only goes on line.
    pub fn give_back(&mut self, number: u64) -> Result<(), Error> {
        let Some(line) = self.book.of(number) else { return Ok(()) };
        let block = self.blocks.read(number)?;
        if line.owner == Owner::Bank {
            if block.state == BlockState::Offline {
                self.blocks.put_on_line(number, true)?;
            }
            return Ok(());
        }
        let back = self.back_to(line.zone, block);
        if back.is_err() {
            self.book.set(Line { owner: Owner::Nobody, ..line })?;
            return back;
        }
        self.book.strike(number)?;
        Ok(())
    }

    /// Gives back those of `numbers` that this process or nobody owns, as a mended block may have
    /// another owner now. Blocks that stay this process's are left for its next work.
    pub fn give_back_own(&mut self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let Ok(this) = self.book.this_process(&self.lock) else { return leave(numbers) };
        for number in numbers {
            let owner = |book: &Book| book.of(*number).map(|line| line.owner);
            if [Some(Owner::Nobody), Some(this)].contains(&owner(&self.book)) {
                let _ = self.give_back(*number);
                if owner(&self.book) == Some(this) {
                    leave(&[*number]);
                }
            }
        }
    }

    /// On failure, the block stays the bank's.
    pub fn drop_from_bank(&mut self, number: u64) -> Result<(), Error> {
        let Some(line) = self.book.of(number) else { return Ok(()) };
        let block = self.blocks.read(number)?;
        self.back_to(line.zone, block)?;
        Ok(self.book.strike(number)?)
    }

    /// Counts the pages of hugetlb pools in a block. Waits for surplus pages to leave, because the
    /// kernel removes those of an ended process late, but at most a second for all blocks together.
    fn pages_of_pools(&mut self, number: u64) -> Result<u64, Error> {
        let begin = Instant::now();
        let mut pages = self.look(number, true)?.pool;
        while pages > 0 {
            // Asked first, because the last surplus page may leave before the next look.
            let may_leave = has_surplus() && begin.elapsed() < self.surplus_patience;
            thread::sleep(PAUSE);
            pages = self.look(number, true)?.pool;
            if !may_leave {
                break;
            }
        }
        self.surplus_patience = self.surplus_patience.saturating_sub(begin.elapsed());
        Ok(pages)
    }

    fn back_to(&mut self, zone: Zone, block: MemoryBlock) -> Result<(), Error> {
        let (number, movable) = (block.number, zone == Zone::Movable);
        match block.state {
            BlockState::Online if block.zone != Some(Zone::Movable) || movable => return Ok(()),
            BlockState::Online => {
                let pool = self.pages_of_pools(number)?;
                if pool > 0 {
                    let why = format!("holds {pool} pages of hugetlb pools");
                    return Err(Error::BlockStays { block: number, why });
                }
                self.blocks.take_off_line(number, BLOCK_PATIENCE)?;
            }
            BlockState::Offline => {}
            BlockState::GoingOffline => {
                let why = "is just going off line, by somebody else".to_owned();
                return Err(Error::BlockStays { block: number, why });
            }
        }
        if let Err(error) = self.blocks.put_on_line(number, movable) {
            // Another program may have been quicker.
            if self.blocks.read(number)?.state != BlockState::Online {
                return Err(error.into());
            }
        }
        let now = self.blocks.read(number)?.zone;
        if now != Some(zone) {
            let (now, zone) = (now.map_or("none", Zone::as_str), zone.as_str());
            self.notes.push(format!("memory block {number} was in zone {zone}, is in {now} now"));
        }
        Ok(())
    }

    fn mend(&mut self) -> Result<(), Error> {
        for line in self.book.lines() {
            let block = match self.blocks.read(line.block) {
                Ok(block) => block,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.notes.push(format!("memory block {} has gone", line.block));
                    self.book.strike(line.block)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.mend_one(line, block)?;
        }
        Ok(())
    }

    pub fn mend_one(&mut self, line: Line, block: MemoryBlock) -> Result<(), Error> {
        let number = line.block;
        let lives = self.book.lives(&self.lock, line.owner)?;
        let is_movable = block.zone == Some(Zone::Movable);
        match (line.owner, block.state) {
            (Owner::Bank, BlockState::Offline) => {
                let what = match self.blocks.put_on_line(number, true) {
                    Ok(()) => "was off line: mended".to_owned(),
                    Err(error) => format!("is off line: {error}"),
                };
                self.notes.push(format!("memory block {number} of the bank {what}"));
            }
            (Owner::Bank, BlockState::Online) if !is_movable => {
                self.book.strike(number)?;
                let what = "was put back by somebody else: it is the bank's no more";
                self.notes.push(format!("memory block {number} {what}"));
            }
            (Owner::Process(_), BlockState::Online) if lives => {}
            (Owner::Process(_) | Owner::Nobody, _) => match self.give_back(number) {
                Ok(()) => self.notes.push(format!(
                    "memory block {number}, which no living process owns, was given back"
                )),
                Err(error) => self.notes.push(format!(
                    "memory block {number} has no owner and cannot be given back yet: {error}"
                )),
            },
            (Owner::Bank, _) => {}
        }
        Ok(())
    }
}

fn has_surplus() -> bool {
    let pools = hugetlb::sizes().into_iter().filter_map(Pool::of);
    pools.filter_map(|pool| pool.counts().ok()).any(|counts| counts.surplus > 0)
}

pub(super) fn machine_blocks() -> Result<MemoryBlocks, Error> {
    MemoryBlocks::machine().map_err(|error| {
        let why = format!("{error}; the kernel needs CONFIG_MEMORY_HOTREMOVE");
        Error::NoBlocks { why }
    })
}

/// Returns true for the first or last block of a DMA zone. Without this block the zone would
/// shrink, so the kernel would put the returned block into another zone.
fn is_border(all: &[MemoryBlock], at: usize) -> bool {
    let zone = all[at].zone;
    let of_zone = |other: Option<&MemoryBlock>| other.is_some_and(|other| other.zone == zone);
    let inside = of_zone(at.checked_sub(1).and_then(|at| all.get(at))) && of_zone(all.get(at + 1));
    matches!(zone, Some(Zone::Dma | Zone::Dma32)) && !inside
}
