//! [`BlockWork`]: the acts on memory blocks, under the lock of the hugetlb pools.
//!
//! Each act is written down first, so that the next holder of the lock can end it. A block goes off
//! line and comes back at once: off line it is memory that the system lacks. One that holds pages
//! of a hugetlb pool is left alone, since taking it off line would move or take somebody's pages.

use std::io::ErrorKind;
use std::time::Duration;

use super::choose::{Candidate, Disturbs};
use super::owner::Book;
use super::record::{Line, Owner};
use super::BLOCK_PATIENCE;
use crate::contig::pool::{Place, PoolLock};
use crate::contig::Error;
use crate::error::OsError;
use crate::sys::kpage::{Frames, Occupancy};
use crate::sys::memory_block::{MemoryBlock, MemoryBlocks, State, Zone};
use crate::sys::numa::Node;

/// Every so many frames of a block one is looked at to tell how full it is.
const SAMPLE_EVERY: u64 = 1 << 11;

/// A block that could not be evacuated, and why.
#[derive(Debug)]
pub(super) struct Stuck {
    pub block: u64,
    pub error: OsError,
}

/// The right to touch memory blocks, until this is dropped.
#[derive(Debug)]
pub(super) struct BlockWork {
    pub lock: PoolLock,
    pub blocks: MemoryBlocks,
    pub book: Book,
    pub frames: Frames,
    pub notes: Vec<String>,
}

impl BlockWork {
    /// Takes the lock and mends what others left.
    ///
    /// # Errors
    /// [`Error::NoBlocks`] where blocks cannot be taken off line at all; if the lock cannot be had.
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
        let mut work = Self { lock, blocks, book, frames, notes };
        work.mend()?;
        Ok(work)
    }

    /// Of `all`, the blocks that may be taken by one that has `own` already, in order of number.
    pub fn candidates(
        &self,
        all: &[MemoryBlock],
        own: &[u64],
        node: Option<Node>,
    ) -> Result<Vec<Candidate>, Error> {
        let mut candidates = Vec::new();
        for (at, block) in all.iter().enumerate() {
            let line = self.book.of(block.number);
            let is_free = line.is_none_or(|l| l.owner == Owner::Bank || own.contains(&l.block));
            let (true, Some(zone), State::Online) = (is_free, block.zone, block.state) else {
                continue;
            };
            if node.is_some() && node != block.node || is_border(all, at) {
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

    /// What the pages of a block are: all, or those up to the first that cannot be moved.
    pub fn look(&self, number: u64, all: bool) -> Result<Occupancy, Error> {
        Ok(self.frames.occupancy(self.blocks.first_frame(number), self.blocks.pages(), all)?)
    }

    /// Empties `numbers` and puts them back as movable memory of `owner`; blocks of the bank stay
    /// the bank's. All of them or none.
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

    /// Takes blocks off line for `owner`, all of them or none.
    pub fn empty(&mut self, numbers: &[u64], owner: Owner) -> Result<(), Result<Stuck, Error>> {
        let is_new = |number: &&u64| self.book.of(**number).is_none();
        let new: Vec<u64> = numbers.iter().filter(is_new).copied().collect();
        for number in numbers {
            self.note_down(*number, owner).map_err(Err)?;
        }
        for number in numbers {
            if let Err(error) = self.blocks.take_off_line(*number, BLOCK_PATIENCE) {
                self.bring_back(&new, true);
                self.bring_back(numbers, false);
                return Err(Ok(Stuck { block: *number, error }));
            }
        }
        Ok(())
    }

    /// Gives blocks back of which one could not be had, those of the bank too where `disown`. What
    /// fails stays on record, and is mended by the next that takes the lock.
    pub fn bring_back(&mut self, numbers: &[u64], disown: bool) {
        for number in numbers {
            if let (true, Some(line)) = (disown, self.book.of(*number)) {
                let _ = self.book.set(Line { owner: Owner::Nobody, ..line });
            }
            let _ = self.give_back(*number);
        }
    }

    /// Empties a block and puts it back as it was. The kernel empties the lists of single
    /// processors on the way, where free pages have no flag.
    pub fn cycle(&mut self, number: u64) -> Result<(), Error> {
        let owner = self.book.this_process(&self.lock)?;
        self.note_down(number, owner)?;
        let emptied = self.blocks.take_off_line(number, BLOCK_PATIENCE);
        self.give_back(number)?;
        Ok(emptied?)
    }

    /// Writes down that a block is about to be touched.
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

    /// Puts a block back to where it was before, unless it is the bank's, and strikes it out.
    /// Where that fails it stays on record, as nobody's.
    pub fn give_back(&mut self, number: u64) -> Result<(), Error> {
        let Some(line) = self.book.of(number) else { return Ok(()) };
        let block = self.blocks.read(number)?;
        if line.owner == Owner::Bank {
            if block.state == State::Offline {
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

    /// As [`BlockWork::give_back`] of a block of the bank, which stays the bank's where that fails.
    pub fn drop_from_bank(&mut self, number: u64) -> Result<(), Error> {
        let Some(line) = self.book.of(number) else { return Ok(()) };
        let block = self.blocks.read(number)?;
        self.back_to(line.zone, block)?;
        Ok(self.book.strike(number)?)
    }

    /// Puts a block into `zone`, if it is not there.
    fn back_to(&mut self, zone: Zone, block: MemoryBlock) -> Result<(), Error> {
        let (number, movable) = (block.number, zone == Zone::Movable);
        match block.state {
            State::Online if block.zone != Some(Zone::Movable) || movable => return Ok(()),
            State::Online => {
                let pool = self.look(number, true)?.pool;
                if pool > 0 {
                    let why = format!("holds {pool} pages of hugetlb pools");
                    return Err(Error::BlockStays { block: number, why });
                }
                self.blocks.take_off_line(number, BLOCK_PATIENCE)?;
            }
            State::Offline => {}
            State::GoingOffline => {
                let why = "is just going off line, by somebody else".to_owned();
                return Err(Error::BlockStays { block: number, why });
            }
        }
        if let Err(error) = self.blocks.put_on_line(number, movable) {
            // Another may have been faster.
            if self.blocks.read(number)?.state != State::Online {
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

    /// Ends what others left: blocks off line come back, blocks of nobody go back to the kernel.
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

    fn mend_one(&mut self, line: Line, block: MemoryBlock) -> Result<(), Error> {
        let number = line.block;
        let lives = self.book.lives(&self.lock, line.owner)?;
        let is_movable = block.zone == Some(Zone::Movable);
        match (line.owner, block.state) {
            (Owner::Bank, State::Offline) => {
                self.blocks.put_on_line(number, true)?;
                self.notes.push(format!("memory block {number} of the bank was off line: mended"));
            }
            (Owner::Bank, State::Online) if !is_movable => {
                self.book.strike(number)?;
                let what = "was put back by somebody else: it is the bank's no more";
                self.notes.push(format!("memory block {number} {what}"));
            }
            (Owner::Process(_), State::Online) if lives => {}
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

/// The blocks of the machine.
pub(super) fn machine_blocks() -> Result<MemoryBlocks, Error> {
    MemoryBlocks::machine().map_err(|error| {
        let why = format!("{error}; the kernel needs CONFIG_MEMORY_HOTREMOVE");
        Error::NoBlocks { why }
    })
}

/// Whether a block is the last or first of a zone other than Normal: without it the zone would be
/// shorter, and the kernel would put the block back elsewhere.
fn is_border(all: &[MemoryBlock], at: usize) -> bool {
    let zone = all[at].zone;
    let of_zone = |other: Option<&MemoryBlock>| other.is_some_and(|other| other.zone == zone);
    let inside = of_zone(at.checked_sub(1).and_then(|at| all.get(at))) && of_zone(all.get(at + 1));
    matches!(zone, Some(Zone::Dma | Zone::Dma32)) && !inside
}
