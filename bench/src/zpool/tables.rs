//! What tables of size classes make of the [trace](super::trace): in a [`Model`], and by the
//! arithmetic of a pool that is compacted at every moment.
//!
//! Overheads are in percent of the bytes stored.

use glebe::units::Bytes;
use glebe::zpool::{Histogram, Metadata, Rules, Table};

use super::model::{Model, Object};
use super::trace::{Change, Trace, BLOCKS, STEPS};

/// A step of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Bytes of the objects.
    pub stored: Bytes,
    /// Bytes of the zspages.
    pub held: Bytes,
    /// The same if it were compacted now.
    pub compacted: Bytes,
}

impl Row {
    /// What is held beyond what is stored, in percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        percent(self.held, self.stored)
    }

    /// The same if it were compacted now.
    #[must_use]
    pub fn percent_compacted(&self) -> f64 {
        percent(self.compacted, self.stored)
    }
}

/// What `held` is beyond `stored`, in percent of that.
#[must_use]
pub fn percent(held: Bytes, stored: Bytes) -> f64 {
    (held.get() as f64 / stored.get() as f64 - 1.0) * 100.0
}

/// Replays the trace in a [`Model`] that is not compacted; a row for each step, and how many
/// objects a compaction after the last one moves.
///
/// # Panics
/// If the compaction frees other pages than were foretold.
#[must_use]
pub fn replay(trace: &Trace, table: &Table, header: Bytes) -> (Vec<Row>, u64) {
    replay_steps((0..STEPS.len()).map(|step| trace.changes(step)), BLOCKS, table, header)
}

/// As [`replay`], of any steps on so many blocks.
///
/// # Panics
/// As [`replay`].
#[must_use]
pub fn replay_steps(
    steps: impl Iterator<Item = impl Iterator<Item = Change>>,
    blocks: usize,
    table: &Table,
    header: Bytes,
) -> (Vec<Row>, u64) {
    let page = table.rules().page;
    let mut model = Model::new(table.clone(), header);
    let mut blocks: Vec<Option<(Object, usize)>> = vec![None; blocks];
    let (mut rows, mut stored) = (Vec::new(), 0);
    for step in steps {
        for change in step {
            let (block, new) = match change {
                Change::Store { block, len } => (block, Some((model.store(len), len))),
                Change::Drop { block } => (block, None),
            };
            stored += new.map_or(0, |(_, len)| len as u64);
            if let Some((old, len)) = std::mem::replace(&mut blocks[block], new) {
                model.drop(old);
                stored -= len as u64;
            }
        }
        let held = model.pages().bytes(page);
        let compacted = held - model.freeable().bytes(page);
        rows.push(Row { stored: Bytes::new(stored), held, compacted });
    }
    let moved = model.compact();
    let last = rows.last().map_or(Bytes::ZERO, |row| row.compacted);
    assert_eq!(model.pages().bytes(page), last);
    (rows, moved)
}

/// The bytes of all objects after a step.
#[must_use]
pub fn stored(trace: &Trace, step: usize) -> Bytes {
    Bytes::new(trace.lengths(step).sum::<usize>() as u64)
}

/// The objects after a step.
///
/// # Panics
/// If no table can be made by `rules`.
#[must_use]
pub fn histogram(trace: &Trace, step: usize, rules: &Rules) -> Histogram {
    let mut histogram = Histogram::new(rules).expect("rules of a table");
    trace.lengths(step).for_each(|len| histogram.add(len, 1));
    histogram
}

/// What a pool with `table` and `header` bytes in front of objects holds of a step when it is
/// compacted: its zspages, its metadata.
///
/// # Panics
/// If the pages of `table` are smaller than the blocks of the trace.
#[must_use]
pub fn compacted(
    trace: &Trace,
    step: usize,
    table: &Table,
    header: usize,
    metadata: &Metadata,
) -> (Bytes, Bytes) {
    let page = table.rules().page.bytes().as_usize();
    let mut objects = vec![0_u64; table.classes().len()];
    for len in trace.lengths(step) {
        // A page has no room for a header.
        let len = if len < page { page.min(len + header) } else { len };
        objects[table.class_of(len).expect("at most a page")] += 1;
    }
    let (mut held, mut beside) = (0, 0);
    for (class, n) in table.classes().iter().zip(objects) {
        let zspages = n.div_ceil(u64::from(class.objects));
        held += zspages * class.pages.bytes(table.rules().page).get();
        let slots = zspages * u64::from(class.objects);
        beside += n * metadata.object.get()
            + slots * metadata.slot.get()
            + zspages * metadata.zspage.get()
            + if n > 0 { metadata.class.get() } else { 0 };
    }
    (Bytes::new(held), Bytes::new(beside))
}

#[cfg(test)]
mod tests;
