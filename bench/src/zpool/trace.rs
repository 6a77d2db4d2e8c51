//! Decodes a trace of the blocks that a compressed block device stored and dropped in each step.
//! `bench/data` describes the file, which is compiled into this program.
//!
//! The trace has each 4 KiB block's length after LZ4, in bytes; [`Made`] makes contents that LZ4
//! compresses to these lengths. Decoding takes 17 MiB and tenths of a second.

use std::io;

use crate::reserve::keyed::mix;

static PACKED: &[u8] = include_bytes!("../../data/seed_trace_lz4.u16.zst");

pub(super) const BLOCKS: usize = 786_432;

#[rustfmt::skip]
pub(super) const STEPS: [&str; 11] = [
    "mkfs", "untar", "-drivers", "-arch", "-fs", "-sound", "-include", "-net", "-Documentation",
    "-kernel", "-tools",
];

/// Marks a block written in this step.
const WRITTEN: u16 = 1 << 15;

/// Replaces a block's contents by `len` bytes, or drops them if `len` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) block: usize,
    pub(super) len: usize,
}

/// Returns each step's changes. Fails if the file is damaged.
pub(super) fn load() -> io::Result<Vec<Vec<Change>>> {
    let mut bytes = vec![0; STEPS.len() * BLOCKS * size_of::<u16>()];
    if zstd_safe::decompress(&mut bytes[..], PACKED) != Ok(bytes.len()) {
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

/// Page size of the trace, on any machine.
pub(super) const PAGE: usize = 4096;
/// Number of offsets in the buffer where objects may begin.
const PLACES: usize = 1 << 20;
/// Bytes that LZ4 adds to a page of random bytes: one for each 255 bytes, and some more.
const ADDED: usize = PAGE / 255 + 8;

/// Buffer of random bytes, from which objects are cut. An object's name (a number) and length
/// determine its place, so a check finds the same bytes again.
pub(super) struct Made(Vec<u8>);

impl Made {
    pub(super) fn new() -> Self {
        let words = (0..(PLACES + PAGE) as u64 / 8).map(|nth| mix(nth).to_ne_bytes());
        Self(words.flatten().collect())
    }

    /// Returns `len` bytes that no codec shortens.
    pub(super) fn object(&self, name: u64, len: usize) -> &[u8] {
        let place = mix(name << 13 ^ len as u64) % PLACES as u64;
        &self.0[place as usize..][..len]
    }

    /// Fills `page` with contents that LZ4 compresses to about `len` bytes, or cannot compress if
    /// `len` is `PAGE`.
    pub(super) fn page(&self, name: u64, len: usize, page: &mut [u8]) {
        let random = if len < PAGE { len.saturating_sub(ADDED) } else { PAGE };
        page.fill(0);
        page[..random].copy_from_slice(self.object(name, random));
    }
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

    #[test]
    fn pages_become_as_long_as_they_are_told() {
        let made = Made::new();
        let mut page = vec![0; PAGE];
        let mut coded = vec![0; lzzzz::lz4::max_compressed_size(PAGE)];
        for len in [40, 300, 1319, 2048, 3000, 3900] {
            for name in 0..50 {
                made.page(name, len, &mut page);
                let is = lzzzz::lz4::compress(&page, &mut coded, 1).unwrap();
                assert!(is.abs_diff(len) <= 16, "{name}: {is} for {len}");
            }
        }
        made.page(3, PAGE, &mut page);
        assert!(lzzzz::lz4::compress(&page, &mut coded, 1).unwrap() >= PAGE);
        assert_eq!(made.object(3, 100).len(), 100);
        assert_ne!(made.object(3, 100), made.object(4, 100));
    }
}
