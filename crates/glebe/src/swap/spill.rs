//! `spill` moves copies of stored objects to the file if the pool is full.
//!
//! Copies leave the pool only after the write, so a failed write loses nothing. A pin waits while
//! `spill` writes the object.

use super::copies::CopyBlock;
use super::error::SwapError;
use super::file::{Run, SpillFile, BATCH};
use super::shelf::{drop_kept, Home, Shelf};
use super::slots::SwapSlot;
use super::stats::Counter;
use super::word::{change, look, must, Word, WordState};

#[derive(Default)]
struct Batch<'a> {
    objects: Vec<(SwapSlot<'a>, CopyBlock)>,
    bytes: Vec<u8>,
}

impl Batch<'_> {
    fn units(&self, file: &SpillFile) -> u64 {
        self.objects.iter().map(|(_, block)| file.units(block.len)).sum()
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

/// Returns false if no file or no copy to move exists.
pub(super) fn spill<S: Shelf>(shelf: &S) -> Result<bool, SwapError> {
    let Some(file) = &shelf.copies().file else { return Ok(false) };
    let mut batch = gather(shelf);
    let Some((_, first)) = batch.objects.first() else { return Ok(false) };
    let (least, most) = (file.units(first.len), batch.units(file));
    let written = run(shelf, file, least, most).and_then(|run| {
        while batch.units(file) > run.units() {
            release(shelf, batch.objects.pop().expect("the first fits").0);
        }
        Ok(file.write(run, batch.records())?)
    });
    let starts = written.inspect_err(|_| {
        batch.objects.iter().for_each(|(slot, _)| release(shelf, *slot));
    })?;
    for ((slot, block), start) in batch.objects.into_iter().zip(starts) {
        let old = slot.copy();
        slot.set_copy(block.moved_to_file(start));
        shelf.copies().drop_copy(old);
        shelf.counts().add(Counter::SpilledBytes, block.len as u64);
        shelf.counts().add(Counter::Spilled, 1);
        release(shelf, slot);
    }
    Ok(true)
}

fn run<S: Shelf>(shelf: &S, file: &SpillFile, least: u64, most: u64) -> Result<Run, SwapError> {
    loop {
        match file.take(least, most) {
            Some(run) => return Ok(run),
            None if drop_kept(shelf, Home::File) => {}
            None => return Err(file.is_full()),
        }
    }
}

fn gather<S: Shelf>(shelf: &S) -> Batch<'_> {
    let slots = u64::from(shelf.used());
    let mut batch = Batch::default();
    for _ in 0..slots {
        if batch.bytes.len() >= BATCH {
            break;
        }
        let at = shelf.hands().next_spill(slots);
        let Some(slot) = shelf.slot(at) else { continue };
        let word = look(slot.word());
        let may_go = word.state() == WordState::Stored && word.has_copy();
        if !may_go || change(slot.word(), |now| now.loading(word.generation())).is_err() {
            continue;
        }
        let from = batch.bytes.len();
        let is_read = slot.copy().in_pool().filter(|block| {
            batch.bytes.resize(from + block.len, 0);
            shelf.copies().gather(*block, &mut batch.bytes[from..]).is_ok()
        });
        match is_read {
            Some(block) => batch.objects.push((slot, block)),
            // The copy is outside the pool, or damaged: its next load reports the damage.
            None => {
                batch.bytes.truncate(from);
                release(shelf, slot);
            }
        }
    }
    batch
}

fn release<S: Shelf>(shelf: &S, slot: SwapSlot<'_>) {
    must(slot.word(), Word::not_loaded);
    shelf.settle(slot);
}
