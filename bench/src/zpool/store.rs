//! [`Store`] keeps numbered objects in the pool, in zram or in an allocator.
//!
//! [`replay`] applies a [`Workload`]. Before each removal and at the end, [`replay`] reads objects
//! back and counts the bytes that differ from the workload. Sizes are bytes.

use glebe::page_size;
use glebe::units::Pages;
use glebe::zpool::{Codec, Handle, ObjectPool};
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};

use super::trace::Change;
use super::workload::{Step, Workload};
use crate::interrupt;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

pub(super) trait Store {
    fn put(&mut self, nth: usize, bytes: &[u8]) -> Outcome;

    fn get(&mut self, nth: usize, to: &mut [u8]) -> Outcome<usize>;

    fn remove(&mut self, nth: usize) -> Outcome;

    fn replace(&mut self, nth: usize, bytes: &[u8]) -> Outcome {
        self.remove(nth)?;
        self.put(nth, bytes)
    }

    fn held(&mut self) -> Outcome<HeldBytes>;

    fn begin(&mut self) -> Outcome {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldBytes {
    /// Bytes of objects as stored.
    pub(super) stored: f64,
    /// Bytes of pages, used or waiting for use.
    pub(super) pages: f64,
    /// Bytes of all other memory.
    pub(super) metadata: f64,
}

impl HeldBytes {
    pub(super) fn percent(&self) -> f64 {
        ((self.pages + self.metadata) / self.stored - 1.0) * 100.0
    }
}

pub(super) struct Pooled {
    pub(super) pool: ObjectPool,
    handles: Vec<Option<Handle>>,
}

impl Pooled {
    pub(super) fn new(is_coded: bool, numbers: usize) -> Outcome<Self> {
        let codec = if is_coded { Codec::Lz4 } else { Codec::None };
        Ok(Self::of(ObjectPool::options().codec(codec).build()?, numbers))
    }

    pub(super) fn of(pool: ObjectPool, numbers: usize) -> Self {
        Self { pool, handles: vec![None; numbers] }
    }
}

impl Store for Pooled {
    #[inline]
    fn put(&mut self, nth: usize, bytes: &[u8]) -> Outcome {
        self.handles[nth] = Some(self.pool.insert(bytes)?);
        Ok(())
    }

    #[inline]
    fn get(&mut self, nth: usize, to: &mut [u8]) -> Outcome<usize> {
        Ok(self.pool.read(self.handles[nth].ok_or("no such object")?, to)?)
    }

    #[inline]
    fn remove(&mut self, nth: usize) -> Outcome {
        Ok(self.pool.remove(self.handles[nth].take().ok_or("no such object")?)?)
    }

    fn held(&mut self) -> Outcome<HeldBytes> {
        let stats = self.pool.stats();
        let pages = Pages::new(stats.used_pages + stats.kept_pages).bytes(page_size());
        Ok(HeldBytes {
            stored: stats.stored_bytes as f64,
            pages: pages.get() as f64,
            metadata: stats.metadata_bytes as f64,
        })
    }
}

/// Maps bytes aligned to a page for direct I/O.
pub(super) fn aligned(len: usize) -> Outcome<MmapMut> {
    Ok(MmapMut::map_anon(len)?)
}

/// Returns the bytes that a store holds after each step, and the number of wrong bytes. Objects of
/// the trace have their LZ4 length, or are whole pages if `plain`.
pub(super) fn replay(
    store: &mut dyn Store,
    workload: &Workload,
    steps: &[Step],
    plain: bool,
) -> Outcome<(Vec<HeldBytes>, u64)> {
    const ABSENT: usize = usize::MAX;
    let page = page_size().bytes().as_usize();
    let (mut buffer, mut back) = (aligned(page)?, aligned(page)?);
    let mut check = |store: &mut dyn Store, old: Change| -> Outcome<u64> {
        let len = store.get(old.block, &mut back)?;
        Ok(differing(&back[..len], workload.contents(old, plain, &mut buffer)?))
    };
    let mut lens = vec![ABSENT; workload.blocks];
    let (mut held, mut wrong) = (Vec::with_capacity(steps.len()), 0);
    let mut buffer = aligned(page)?;
    store.begin()?;
    for step in rounds("steps", steps.len() as u64, NO_END) {
        for &change in &steps[step as usize].changes {
            interrupt::check();
            let len = std::mem::replace(&mut lens[change.block], ABSENT);
            if len != ABSENT {
                wrong += check(store, Change { len, ..change })?;
                store.remove(change.block)?;
            }
            if change.len > 0 {
                store.put(change.block, workload.contents(change, plain, &mut buffer)?)?;
                lens[change.block] = change.len;
            }
        }
        held.push(store.held()?);
    }
    for (block, len) in lens.into_iter().enumerate().filter(|(_, len)| *len != ABSENT) {
        wrong += check(store, Change { block, len })?;
    }
    Ok((held, wrong))
}

/// Counts bytes that differ or that only one side has.
pub(super) fn differing(is: &[u8], wanted: &[u8]) -> u64 {
    if is == wanted {
        return 0;
    }
    let both = is.iter().zip(wanted).filter(|(is, wanted)| is != wanted).count();
    (both + is.len().abs_diff(wanted.len())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::zram::Zram;

    #[test]
    fn a_sample_of_the_trace_comes_back_whole_from_both() {
        assert_eq!((differing(b"abc", b"xbz"), differing(b"abc", b"ab")), (2, 1));
        let workload = Workload::of_trace(64).unwrap();
        let mut pool = Pooled::new(false, workload.blocks).unwrap();
        let (ours, wrong) = replay(&mut pool, &workload, &workload.directories, false).unwrap();
        assert_eq!((wrong, ours.len()), (0, workload.directories.len()));
        assert!(ours[0].percent() >= 0.0);
        let Some(mut zram) = crate::had(Zram::new(workload.blocks, true)) else { return };
        let (theirs, wrong) = replay(&mut zram, &workload, &workload.directories, true).unwrap();
        assert_eq!(wrong, 0);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            // zram compresses pages to about the length of the pool's objects.
            let apart = (ours.stored / theirs.stored - 1.0).abs();
            assert!(apart < 0.02, "{ours:?} {theirs:?}");
        }
    }
}
