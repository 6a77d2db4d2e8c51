//! [`Made`]: contents for objects of which only the length is known.
//!
//! Random bytes, another place of one buffer for each object, so that they can be made again to
//! compare. Where a codec stores them, a page that LZ4 makes as long as the object: random bytes
//! and zeros after them. Lengths in bytes. Cost: a copy.

use crate::reserve::keyed::mix;

/// The page of the trace, whatever that of the machine.
pub(super) const PAGE: usize = 4096;
/// Where objects begin in the buffer, and room for the last one.
const PLACES: usize = 1 << 20;
/// What LZ4 adds to the random bytes of a page: a byte for each 255 of the page, and some more.
const ADDED: usize = PAGE / 255 + 8;

/// A source of contents.
#[derive(Debug)]
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
