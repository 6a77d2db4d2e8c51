//! Physical runs of mapped memory, from `/proc/self/pagemap` (one 8-byte entry a base page: frame
//! number in bits 0 to 54, present in bit 63; the number reads as zero without CAP_SYS_ADMIN).
//!
//! Cost: one read of 8 bytes a page. Source: Documentation/admin-guide/mm/pagemap.rst.

use std::fs::File;
use std::os::unix::fs::FileExt;

use glebe::sys::page_size;
use glebe::units::Pages;

const ENTRY_BYTES: usize = size_of::<u64>();
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// The longest run of adjacent frames among `pages` from `address`; `None` if frames are hidden.
pub(crate) fn longest_run(address: usize, pages: Pages) -> Option<Pages> {
    longest(read(address, pages)?.into_iter())
}

/// The frame of each of `pages` from `address`, nothing for one that is not there; `None` if frames
/// are hidden.
pub(crate) fn frames_of(address: usize, pages: Pages) -> Option<Vec<Option<u64>>> {
    read(address, pages).filter(|frames| !frames.contains(&Some(0)))
}

/// A hidden frame reads as zero.
fn read(address: usize, pages: Pages) -> Option<Vec<Option<u64>>> {
    let first = address as u64 >> page_size().shift();
    let mut entries = vec![0; pages.as_usize() * ENTRY_BYTES];
    let pagemap = File::open("/proc/self/pagemap").ok()?;
    pagemap.read_exact_at(&mut entries, first * ENTRY_BYTES as u64).ok()?;
    let frames = entries.chunks_exact(ENTRY_BYTES).map(|entry| {
        let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
        (entry & PRESENT != 0).then_some(entry & FRAME)
    });
    Some(frames.collect())
}

/// `None` if a present page shows no frame; a page that is not present breaks a run.
fn longest(frames: impl Iterator<Item = Option<u64>>) -> Option<Pages> {
    let (mut best, mut run, mut last) = (0, 0, None);
    for frame in frames {
        run = match (frame, last) {
            (Some(0), _) => return None,
            (Some(now), Some(before)) if now == before + 1 => run + 1,
            (Some(_), _) => 1,
            (None, _) => 0,
        };
        last = frame;
        best = best.max(run);
    }
    Some(Pages::new(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(frames: &[u64]) -> Option<u64> {
        let absent = u64::MAX;
        longest(frames.iter().map(|&f| (f != absent).then_some(f))).map(Pages::get)
    }

    #[test]
    fn runs_ascend_without_gaps() {
        assert_eq!(run(&[7, 8, 9, 4, 5]), Some(3));
        assert_eq!(run(&[9, 8, 7]), Some(1));
        assert_eq!(run(&[1, 1, 2, 3]), Some(3));
        assert_eq!(run(&[7, 8, u64::MAX, 9, 10, 11]), Some(3));
        assert_eq!(run(&[u64::MAX]), Some(0));
        assert_eq!(run(&[]), Some(0));
        assert_eq!(run(&[5, 0]), None);
    }
}
