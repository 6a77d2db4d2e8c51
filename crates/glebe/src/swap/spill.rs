//! How copies go from the pool to the file.
//!
//! Who finds the pool full writes a batch of copies of objects that are not in memory, and only
//! then gives up what the pool has of them: so a write that fails loses nothing. The objects come
//! in the order of their slots, from where the last batch ended. A pin of one of them waits for
//! the write. Cost: a read of the pool and two copies of the bytes, one write.

use super::copies::Block;
use super::error::Error;
use super::file::{units, Run, SpillFile, BATCH};
use super::room::Home;
use super::slots::Slot;
use super::stats::Counter;
use super::store::Store;
use super::word::{change, look, must, State, Word};
use crate::sync::Ordering;

/// Copies that are about to be written.
#[derive(Default)]
struct Batch<'a> {
    /// Objects that this call has to itself, each with its copy.
    objects: Vec<(Slot<'a>, Block)>,
    /// The blocks, one behind the other.
    bytes: Vec<u8>,
}

impl Batch<'_> {
    fn units(&self) -> u64 {
        self.objects.iter().map(|(_, block)| units(block.len)).sum()
    }

    fn records(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut rest = &self.bytes[..];
        self.objects.iter().map(move |(_, block)| {
            let (record, behind) = rest.split_at(block.len);
            rest = behind;
            record
        })
    }
}

impl Store {
    /// Moves copies from the pool to the file; false if there is no file, or nothing to move.
    ///
    /// # Errors
    /// [`Error::FileFull`], or what the device refuses; then all are where they were.
    pub(super) fn spill(&self) -> Result<bool, Error> {
        let Some(file) = &self.copies.file else { return Ok(false) };
        let mut batch = self.gather();
        let Some((_, first)) = batch.objects.first() else { return Ok(false) };
        let (least, most) = (units(first.len), batch.units());
        let written = self.run(file, least, most).and_then(|run| {
            while batch.units() > run.units() {
                self.release(batch.objects.pop().expect("the first fits").0);
            }
            Ok(file.write(run, batch.records())?)
        });
        let starts = written.inspect_err(|_| {
            batch.objects.iter().for_each(|(slot, _)| self.release(*slot));
        })?;
        for ((slot, block), start) in batch.objects.into_iter().zip(starts) {
            let old = slot.copy();
            slot.set_copy(block.moved_to_file(start));
            self.copies.drop_copy(old);
            self.counts.add(Counter::SpilledBytes, block.len as u64);
            self.counts.add(Counter::Spilled, 1);
            self.release(slot);
        }
        Ok(true)
    }

    /// A run of the file, for which kept copies go if they must.
    fn run(&self, file: &SpillFile, least: u64, most: u64) -> Result<Run, Error> {
        loop {
            match file.take(least, most) {
                Some(run) => return Ok(run),
                None if self.drop_kept(Home::File) => {}
                None => return Err(file.is_full()),
            }
        }
    }

    /// Takes objects whose copies are in the pool, and reads these.
    fn gather(&self) -> Batch<'_> {
        let slots = u64::from(self.places.used());
        let mut batch = Batch::default();
        for _ in 0..slots {
            if batch.bytes.len() >= BATCH {
                break;
            }
            let at = self.room.spill_hand.fetch_add(1, Ordering::Relaxed) % slots;
            let Some(slot) = self.places.slot(at as u32) else { continue };
            let word = look(slot.word());
            let may_go = word.state() == State::Stored && word.has_copy();
            if !may_go || change(slot.word(), |now| now.loading(word.generation())).is_err() {
                continue;
            }
            let from = batch.bytes.len();
            let is_read = slot.copy().in_pool().filter(|block| {
                batch.bytes.resize(from + block.len, 0);
                self.copies.gather(*block, &mut batch.bytes[from..]).is_ok()
            });
            match is_read {
                Some(block) => batch.objects.push((slot, block)),
                // In the file already, or damaged, which its next load says.
                None => {
                    batch.bytes.truncate(from);
                    self.release(slot);
                }
            }
        }
        batch
    }

    /// Lets others have an object again.
    fn release(&self, slot: Slot<'_>) {
        must(slot.word(), Word::not_loaded);
        self.settle(slot);
    }
}
