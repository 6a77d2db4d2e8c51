//! The trace: what a compressed block device stored and gave up, step by step, from a file that is
//! part of this program. Its format is told beside it, in `bench/data`.
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

/// The changes of each step, in order; an error if the file is damaged or has another length.
pub(super) fn load() -> io::Result<Vec<Vec<Change>>> {
    let mut bytes = Vec::with_capacity(STEPS.len() * BLOCKS * size_of::<u16>());
    XzReader::new(PACKED, false).read_to_end(&mut bytes)?;
    if bytes.len() != STEPS.len() * BLOCKS * size_of::<u16>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut lens = vec![0; BLOCKS];
    let mut step = |words: &[u8]| {
        let words = words.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        let changed = words.zip(&mut lens).enumerate().filter_map(|(block, (word, had))| {
            let len = usize::from(word & !WRITTEN);
            let is_changed = if len == 0 { *had != 0 } else { word & WRITTEN != 0 };
            *had = len;
            is_changed.then_some(Change { block, len })
        });
        changed.collect()
    };
    Ok(bytes.chunks_exact(BLOCKS * size_of::<u16>()).map(&mut step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lead_to_what_the_device_held() {
        let mut blocks = vec![0; BLOCKS];
        let mut held = Vec::new();
        for changes in load().unwrap() {
            changes.iter().for_each(|change| blocks[change.block] = change.len);
            let stored = blocks.iter().filter(|len| **len > 0);
            held.push((stored.count(), blocks.iter().sum::<usize>()));
        }
        assert_eq!((held[1], held[10].0, held.len()), ((389_425, 513_512_829), 29_941, 11));
    }
}
