//! [`Made`]: contents for objects of which only the length is known.
//!
//! Random bytes, another place of one buffer for each object, so that they can be made again to
//! compare. Where a codec stores them, a page that LZ4 makes as long as the object: random bytes
//! and zeros after them. Lengths in bytes. Cost: a copy; once, 4096 pages are coded.

use crate::reserve::keyed::mix;

/// The page of the trace, whatever that of the machine.
pub(super) const PAGE: usize = 4096;

/// Where objects begin in the buffer, and room for the last one.
const PLACES: usize = 1 << 20;

/// A source of contents.
#[derive(Debug)]
pub(super) struct Made {
    random: Vec<u8>,
    /// By coded length: random bytes of the page that comes nearest from below.
    random_by_coded: Vec<u16>,
}

impl Made {
    pub(super) fn new() -> Self {
        let mut random = vec![0; PLACES + PAGE];
        for (nth, word) in random.chunks_exact_mut(size_of::<u64>()).enumerate() {
            word.copy_from_slice(&mix(nth as u64).to_ne_bytes());
        }
        let mut made = Self { random, random_by_coded: vec![0; PAGE + 1] };
        let mut coded = vec![0; lzzzz::lz4::max_compressed_size(PAGE)];
        let mut page = vec![0; PAGE];
        for n in 0..PAGE {
            made.prefixed(0, n, &mut page);
            let len = lzzzz::lz4::compress(&page, &mut coded, lzzzz::lz4::ACC_LEVEL_DEFAULT);
            let len = len.unwrap_or(PAGE).min(PAGE);
            made.random_by_coded[len] = made.random_by_coded[len].max(n as u16);
        }
        let mut last = 0;
        for n in &mut made.random_by_coded {
            last = last.max(*n);
            *n = last;
        }
        // A page that does not shrink.
        made.random_by_coded[PAGE] = PAGE as u16;
        made
    }

    /// `len` bytes that no codec shortens.
    pub(super) fn object(&self, name: u64, len: usize) -> &[u8] {
        &self.random[place(name, len)..][..len]
    }

    /// Fills `page` with what LZ4 makes about `len` bytes long.
    pub(super) fn page(&self, name: u64, len: usize, page: &mut [u8]) {
        let n = usize::from(self.random_by_coded[len.min(PAGE)]);
        self.prefixed(place(name, len), n, page);
    }

    fn prefixed(&self, place: usize, n: usize, page: &mut [u8]) {
        page[..n].copy_from_slice(&self.random[place..][..n]);
        page[n..].fill(0);
    }
}

fn place(name: u64, len: usize) -> usize {
    (mix(name << 13 ^ len as u64) % PLACES as u64) as usize
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
