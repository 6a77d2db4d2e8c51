//! [`Trace`]: what a compressed block device stored and gave up, step by step, from a file that
//! is part of this program. Its format is told beside it, in `bench/data`.
//!
//! Lengths are in bytes, of 4 KiB blocks after LZ4. Cost: 17 MiB, and tenths of a second to
//! decode.

use std::io::{self, Read};

use lzma_rust2::XzReader;

static PACKED: &[u8] = include_bytes!("../../data/seed_trace_lz4.u16.xz");

/// Blocks of the device.
pub const BLOCKS: usize = 786_432;

/// What was done, in order.
pub const STEPS: [&str; 11] = [
    "mkfs",
    "untar",
    "-drivers",
    "-arch",
    "-fs",
    "-sound",
    "-include",
    "-net",
    "-Documentation",
    "-kernel",
    "-tools",
];

/// Set in the word of a block that was written in this step.
const WRITTEN: u16 = 1 << 15;

/// One thing that was done to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The block has new contents of `len` bytes: they are stored, then what it had is dropped.
    Store {
        /// Which block.
        block: usize,
        /// Never 0.
        len: usize,
    },
    /// What the block had is dropped.
    Drop {
        /// Which block.
        block: usize,
    },
}

/// All steps.
#[derive(Debug)]
pub struct Trace {
    words: Vec<u16>,
}

impl Trace {
    /// Decodes the trace.
    ///
    /// # Errors
    /// The file is damaged or has another length.
    pub fn load() -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(STEPS.len() * BLOCKS * size_of::<u16>());
        XzReader::new(PACKED, false).read_to_end(&mut bytes)?;
        let words: Vec<u16> =
            bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        if words.len() != STEPS.len() * BLOCKS {
            let text =
                format!("a trace of {} blocks, {} are needed", words.len(), STEPS.len() * BLOCKS);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { words })
    }

    /// What was done in step `step`, in order.
    pub fn changes(&self, step: usize) -> impl Iterator<Item = Change> + '_ {
        let words = self.words[step * BLOCKS..][..BLOCKS].iter();
        words.enumerate().filter_map(move |(block, word)| {
            let len = usize::from(word & !WRITTEN);
            let had = step > 0 && self.words[(step - 1) * BLOCKS + block] & !WRITTEN != 0;
            match len {
                0 => had.then_some(Change::Drop { block }),
                len => (word & WRITTEN != 0).then_some(Change::Store { block, len }),
            }
        })
    }

    /// The lengths of what is stored after step `step`, by block.
    pub fn lengths(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        let words = self.words[step * BLOCKS..][..BLOCKS].iter();
        words.map(|word| usize::from(word & !WRITTEN)).filter(|len| *len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lead_from_each_step_to_the_next() {
        let trace = Trace::load().unwrap();
        let mut blocks = vec![0; BLOCKS];
        for (step, name) in STEPS.iter().enumerate() {
            for change in trace.changes(step) {
                match change {
                    Change::Store { block, len } => blocks[block] = len,
                    Change::Drop { block } => blocks[block] = 0,
                }
            }
            let stored = blocks.iter().copied().filter(|len| *len > 0);
            assert!(stored.eq(trace.lengths(step)), "{name}");
        }
        assert_eq!(trace.lengths(1).count(), 389_425);
        assert_eq!(trace.lengths(1).sum::<usize>(), 513_512_829);
        assert_eq!(trace.lengths(10).count(), 29_941);
    }
}
