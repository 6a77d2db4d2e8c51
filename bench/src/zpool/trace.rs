//! [`Trace`]: what a compressed block device stored and gave up, step by step, from a file that
//! is part of this program. Its format is told beside it, in `bench/data`.
//!
//! Lengths are in bytes, of 4 KiB blocks after LZ4. Cost: 17 MiB, and tenths of a second to
//! decode.

use std::io::{self, Read};

use lzma_rust2::XzReader;

static PACKED: &[u8] = include_bytes!("../../data/seed_trace_lz4.u16.xz");

/// Blocks of the device.
pub(super) const BLOCKS: usize = 786_432;

/// What was done, in order.
#[rustfmt::skip]
pub(super) const STEPS: [&str; 11] = [
    "mkfs", "untar", "-drivers", "-arch", "-fs", "-sound", "-include", "-net", "-Documentation",
    "-kernel", "-tools",
];

/// Set in the word of a block that was written in this step.
const WRITTEN: u16 = 1 << 15;

/// A block gets new contents of `len` bytes, and what it had is dropped; of 0 bytes, nothing comes
/// in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) block: usize,
    pub(super) len: usize,
}

/// All steps.
#[derive(Debug)]
pub(super) struct Trace {
    words: Vec<u16>,
}

impl Trace {
    /// Decodes the trace; an error if the file is damaged or has another length.
    pub(super) fn load() -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(STEPS.len() * BLOCKS * size_of::<u16>());
        XzReader::new(PACKED, false).read_to_end(&mut bytes)?;
        if bytes.len() != STEPS.len() * BLOCKS * size_of::<u16>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let words = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        Ok(Self { words: words.collect() })
    }

    /// What was done in step `step`, in order.
    pub(super) fn changes(&self, step: usize) -> impl Iterator<Item = Change> + '_ {
        let words = self.words[step * BLOCKS..][..BLOCKS].iter();
        words.enumerate().filter_map(move |(block, word)| {
            let len = usize::from(word & !WRITTEN);
            let had = step > 0 && self.words[(step - 1) * BLOCKS + block] & !WRITTEN != 0;
            let changes = if len == 0 { had } else { word & WRITTEN != 0 };
            changes.then_some(Change { block, len })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lead_from_each_step_to_the_next() {
        let trace = Trace::load().unwrap();
        let mut blocks = vec![0; BLOCKS];
        let mut counts = Vec::new();
        for step in 0..STEPS.len() {
            trace.changes(step).for_each(|change| blocks[change.block] = change.len);
            let words = trace.words[step * BLOCKS..][..BLOCKS].iter();
            assert!(blocks.iter().copied().eq(words.map(|word| usize::from(word & !WRITTEN))));
            let stored = blocks.iter().filter(|len| **len > 0);
            counts.push((stored.count(), blocks.iter().sum::<usize>()));
        }
        assert_eq!((counts[1], counts[10].0), ((389_425, 513_512_829), 29_941));
    }
}
