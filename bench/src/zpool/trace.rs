//! The trace: what a compressed block device stored and gave up, step by step, from a file that is
//! part of this program. Its format is told beside it, in `bench/data`.
//!
//! Lengths are in bytes, of 4 KiB blocks after LZ4; contents to these lengths are [`Made`]. Cost:
//! 17 MiB, and tenths of a second to decode.

use std::io;

use crate::reserve::keyed::mix;

static PACKED: &[u8] = include_bytes!("../../data/seed_trace_lz4.u16.zst");

/// Blocks of the device.
pub(super) const BLOCKS: usize = 786_432;

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

/// The page of the trace, whatever that of the machine.
pub(super) const PAGE: usize = 4096;
/// Where objects begin in the buffer, and room for the last one.
const PLACES: usize = 1 << 20;
/// What LZ4 adds to the random bytes of a page: a byte for each 255 of the page, and some more.
const ADDED: usize = PAGE / 255 + 8;

/// A source of contents, of which only the length is known: random bytes, another place of one
/// buffer for each object, so that they can be made again to compare. For a codec, a page that LZ4
/// makes as long as the object: random bytes and zeros after them.
pub(super) struct Made(Vec<u8>);

impl Made {
    pub(super) fn new() -> Self {
        let words = (0..(PLACES + PAGE) as u64 / 8).map(|nth| mix(nth).to_ne_bytes());
        Self(words.flatten().collect())
    }

    /// `len` bytes that no codec shortens.
    pub(super) fn object(&self, name: u64, len: usize) -> &[u8] {
        let place = mix(name << 13 ^ len as u64) % PLACES as u64;
        &self.0[place as usize..][..len]
    }

    /// Fills `page` with what LZ4 makes about `len` bytes long, or with what does not shrink.
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
