//! Steps of a [`Workload`] done to a pool and to a [`Zram`]; what each holds after each of them.
//!
//! Every object is read back and compared before it is dropped, or at the end. Bytes.

use glebe::sys::page_size;
use glebe::units::Pages;
use glebe::zpool::Handle;

use super::aligned::Aligned;
use super::trace::Change;
use super::workload::{Step, Workload};
use super::zram::{Absent, Zram};
use super::{pool, Error};
use crate::interrupt;
use crate::samples::{rounds, NO_END};

/// Bytes that the kernel's pool keeps for each object and for each zspage, uncounted.
const HANDLE: f64 = 8.0;
const ZSPAGE: f64 = 56.0;
/// Pages of a zspage of the kernel's in the mean, by arithmetic of the whole trace.
const ZSPAGE_PAGES: f64 = 3.06;
/// Pages written at once, where they lie side by side.
const BATCH: usize = 64;

/// What is held after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// Of the objects as they are stored.
    pub(super) stored: f64,
    /// Of pages, used or waiting to be.
    pub(super) pages: f64,
    /// Of all else that it takes.
    pub(super) metadata: f64,
}

impl Held {
    /// What is held beyond what is stored, in percent of that.
    pub(super) fn percent(&self) -> f64 {
        ((self.pages + self.metadata) / self.stored - 1.0) * 100.0
    }

    /// The same without metadata.
    pub(super) fn percent_plain(&self) -> f64 {
        (self.pages / self.stored - 1.0) * 100.0
    }
}

/// Does `steps` to a pool: what it holds after each, and bytes that came back different.
pub(super) fn in_pool(workload: &Workload, steps: &[Step]) -> Result<(Vec<Held>, u64), Error> {
    let pool = pool(workload.is_tree())?;
    let page = page_size();
    let mut kept: Vec<Option<(Handle, Change)>> = vec![None; workload.blocks];
    let mut buffer = vec![0; page.bytes().as_usize()];
    let mut back = buffer.clone();
    let mut check = |(handle, change): (Handle, Change)| -> Result<u64, Error> {
        let len = pool.read(handle, &mut back)?;
        Ok(differing(&back[..len], workload.object(change, &mut buffer)?))
    };
    let mut object = vec![0; page.bytes().as_usize()];
    let (mut held, mut wrong) = (Vec::new(), 0);
    rounds("glebe", (steps.len() as u64, NO_END), |step| {
        for &change in &steps[step as usize].changes {
            interrupt::check();
            let new = match change.len {
                0 => None,
                _ => Some((pool.insert(workload.object(change, &mut object)?)?, change)),
            };
            if let Some(old) = std::mem::replace(&mut kept[change.block], new) {
                wrong += check(old)?;
                pool.remove(old.0)?;
            }
        }
        let stats = pool.stats();
        let pages = Pages::new(stats.used_pages + stats.kept_pages).bytes(page);
        held.push(Held {
            stored: stats.stored_bytes as f64,
            pages: pages.get() as f64,
            metadata: stats.metadata_bytes as f64,
        });
        Ok::<_, Error>(())
    })?;
    for left in kept.into_iter().flatten() {
        wrong += check(left)?;
    }
    Ok((held, wrong))
}

/// Bytes that differ, those that only one of them has among them.
pub(super) fn differing(is: &[u8], wanted: &[u8]) -> u64 {
    if is == wanted {
        return 0;
    }
    let both = is.iter().zip(wanted).filter(|(is, wanted)| is != wanted).count();
    (both + is.len().abs_diff(wanted.len())) as u64
}

/// Does `steps` to a device, compacted by hand after each or not at all.
pub(super) fn in_zram(
    workload: &Workload,
    steps: &[Step],
    compact: bool,
) -> Result<Vec<Held>, Absent> {
    let device = Zram::new(workload.blocks)?;
    let page = page_size().bytes().as_usize();
    let mut bytes = Aligned::new(BATCH * page);
    let follows = |a: &Change, b: &Change| b.block == a.block + 1 && (a.len == 0) == (b.len == 0);
    let mut held = Vec::new();
    rounds("zram", (steps.len() as u64, NO_END), |step| {
        let runs = steps[step as usize].changes.chunk_by(follows);
        for run in runs.flat_map(|run| run.chunks(BATCH)) {
            interrupt::check();
            let first = run[0].block;
            if run[0].len == 0 {
                device.discard(first, run.len())?;
                continue;
            }
            for (change, page) in run.iter().zip(bytes.bytes().chunks_exact_mut(page)) {
                let unread = |e| glebe::error::OsError::new("read", "contents", e);
                workload.page(*change, page).map_err(unread)?;
            }
            device.write(first, &bytes.as_slice()[..run.len() * page])?;
        }
        if compact {
            device.compact()?;
        }
        let stat = device.stat()?;
        let [original, used] = [stat.original, stat.used].map(|bytes| (bytes / page as u64) as f64);
        let objects = original - stat.same_pages as f64;
        held.push(Held {
            stored: stat.stored as f64,
            pages: stat.used as f64,
            metadata: objects * HANDLE + used / ZSPAGE_PAGES * ZSPAGE,
        });
        Ok::<_, Absent>(())
    })?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::trace::Trace;

    #[test]
    fn a_sample_of_the_trace_comes_back_whole_from_both() {
        assert_eq!((differing(b"abc", b"xbz"), differing(b"abc", b"ab")), (2, 1));
        let workload = Workload::of_trace(&Trace::load().unwrap(), 64);
        let (held, wrong) = in_pool(&workload, &workload.directories).unwrap();
        assert_eq!((wrong, held.len()), (0, workload.directories.len()));
        assert!(held[0].percent() >= held[0].percent_plain() && held[0].percent_plain() >= 0.0);
        match in_zram(&workload, &workload.directories, true) {
            Err(why) => println!("skipped: {why}"),
            Ok(zram) => {
                for (ours, theirs) in held.iter().zip(&zram) {
                    // The pages are made to be that long, within some bytes.
                    let apart = (ours.stored / theirs.stored - 1.0).abs();
                    assert!(apart < 0.02, "{ours:?} {theirs:?}");
                }
            }
        }
    }
}
