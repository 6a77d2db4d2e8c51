//! Steps of a [`Workload`] done to a pool and to a [`Zram`]; what each holds after each of them.
//!
//! Every object is read back and compared before it is dropped, or at the end. Bytes.

use glebe::sys::page_size;
use glebe::zpool::Handle;

use super::aligned::Aligned;
use super::made::PAGE;
use super::store::{Classes, Store};
use super::trace::Change;
use super::workload::{Step, Workload};
use super::zram::{self, Zram};
use super::Error;
use crate::progress::Progress;

/// Bytes that the kernel's pool keeps for each object, and for each zspage, uncounted.
const HANDLE: f64 = 8.0;
const ZSPAGE: f64 = 56.0;

/// Changes between two updates of the progress.
const TELL_EVERY: usize = 1 << 12;

/// Pages written at once, where they lie side by side.
const BATCH: usize = 64;

/// What is held after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Of the objects as the program has them.
    pub(super) original: f64,
    /// Of the objects as they are stored.
    pub(super) stored: f64,
    /// Of the pages that have room for them.
    pub(super) used: f64,
    /// Of pages that wait to be used.
    pub(super) kept: f64,
    /// Of all else that it takes.
    pub(super) metadata: f64,
}

impl Figures {
    /// What pages in use are beyond what is stored, in percent of that: the patch's figure.
    pub(super) fn percent_used(&self) -> f64 {
        self.beyond(self.used)
    }

    /// The same with all pages.
    pub(super) fn percent_plain(&self) -> f64 {
        self.beyond(self.used + self.kept)
    }

    /// The same with all that is held.
    pub(super) fn percent(&self) -> f64 {
        self.beyond(self.used + self.kept + self.metadata)
    }

    fn beyond(&self, held: f64) -> f64 {
        (held / self.stored - 1.0) * 100.0
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) figures: Vec<Figures>,
    /// Bytes that came back different.
    pub(super) wrong: u64,
}

/// The progress of a replay.
struct Told {
    progress: Progress,
    done: usize,
}

impl Told {
    fn new(who: &str, steps: &[Step]) -> Self {
        let total: usize = steps.iter().map(|step| step.changes.len()).sum();
        Self { progress: Progress::new(who, total as u64), done: 0 }
    }

    fn one_more(&mut self) {
        self.done += 1;
        if self.done % TELL_EVERY == 0 {
            self.progress.update(self.done as u64);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.progress.clear();
    }
}

/// An object in the pool.
#[derive(Clone, Copy)]
struct Kept {
    handle: Handle,
    len: u16,
}

/// Does `steps` to a pool of `classes`; each object is `header` bytes longer than it counts.
pub(super) fn in_pool(
    workload: &Workload,
    steps: &[Step],
    classes: Classes,
    header: usize,
) -> Result<Outcome, Error> {
    let store = Store::new(classes, workload.is_tree())?;
    let mut kept: Vec<Option<Kept>> = vec![None; workload.blocks];
    let mut buffer = vec![0; page_size().bytes().as_usize()];
    let mut back = buffer.clone();
    let mut outcome = Outcome::default();
    let (mut objects, mut headers) = (0_u64, 0_u64);
    let longer = |len: usize| (len + header).min(PAGE);
    let mut check = |block: usize, kept: Kept, buffer: &mut [u8]| -> Result<u64, Error> {
        let wanted = workload.object(block, longer(usize::from(kept.len)), buffer)?;
        let len = store.read(kept.handle, &mut back)?;
        Ok(differing(&back[..len], wanted))
    };
    let mut progress = Told::new(&classes.name(), steps);
    for step in steps {
        for change in &step.changes {
            progress.one_more();
            let (block, new) = match *change {
                Change::Drop { block } => (block, None),
                Change::Store { block, len } => {
                    let object = workload.object(block, longer(len), &mut buffer)?;
                    let handle = store.insert(object)?;
                    headers += (longer(len) - len) as u64;
                    objects += 1;
                    (block, Some(Kept { handle, len: len as u16 }))
                }
            };
            if let Some(old) = std::mem::replace(&mut kept[block], new) {
                outcome.wrong += check(block, old, &mut buffer)?;
                store.remove(old.handle)?;
                let len = usize::from(old.len);
                headers -= (longer(len) - len) as u64;
                objects -= 1;
            }
        }
        let held = store.held();
        outcome.figures.push(Figures {
            original: objects as f64 * workload.object_bytes() as f64,
            stored: (held.stored - headers) as f64,
            used: held.used as f64,
            kept: held.kept as f64,
            metadata: held.metadata as f64,
        });
    }
    for (block, kept) in kept.iter().enumerate() {
        if let Some(kept) = *kept {
            outcome.wrong += check(block, kept, &mut buffer)?;
        }
    }
    Ok(outcome)
}

/// Bytes that differ, those that only one of them has among them.
pub(super) fn differing(is: &[u8], wanted: &[u8]) -> u64 {
    if is == wanted {
        return 0;
    }
    let both = is.iter().zip(wanted).filter(|(is, wanted)| is != wanted).count();
    (both + is.len().abs_diff(wanted.len())) as u64
}

/// Does `steps` to a device, compacted by hand after each or not at all. A zspage has
/// `zspage_pages` in the mean, as far as is known.
pub(super) fn in_zram(
    workload: &Workload,
    steps: &[Step],
    compact: bool,
    zspage_pages: f64,
) -> Result<Outcome, zram::Absent> {
    let device = Zram::new(workload.blocks)?;
    let page = page_size().bytes().as_usize();
    let mut batch = Batch::new(&device, page);
    let mut outcome = Outcome::default();
    let unread = |e| glebe::error::OsError::new("read", "contents", e);
    let mut progress = Told::new("zram", steps);
    for step in steps {
        for change in &step.changes {
            progress.one_more();
            match *change {
                Change::Store { block, len } => {
                    let to = batch.page(block, true)?;
                    workload.page(block, len, to).map_err(unread)?;
                }
                Change::Drop { block } => {
                    batch.page(block, false)?;
                }
            }
        }
        batch.flush()?;
        if compact {
            device.compact()?;
        }
        let stat = device.stat()?;
        let objects = stat.original as f64 / page as f64 - stat.same_pages as f64;
        let zspages = stat.used as f64 / page as f64 / zspage_pages;
        outcome.figures.push(Figures {
            original: stat.original as f64,
            stored: stat.stored as f64,
            used: stat.used as f64,
            kept: 0.0,
            metadata: objects * HANDLE + zspages * ZSPAGE,
        });
    }
    Ok(outcome)
}

/// Pages side by side that are to be written, or dropped.
struct Batch<'a> {
    device: &'a Zram,
    bytes: Aligned,
    page: usize,
    first: usize,
    pages: usize,
    is_store: bool,
}

impl<'a> Batch<'a> {
    fn new(device: &'a Zram, page: usize) -> Self {
        let bytes = Aligned::new(BATCH * page);
        Self { device, bytes, page, first: 0, pages: 0, is_store: false }
    }

    /// Where the bytes of a page go that is to be written; meaningless for one to be dropped.
    fn page(&mut self, block: usize, is_store: bool) -> Result<&mut [u8], zram::Absent> {
        let follows = self.first + self.pages == block && self.is_store == is_store;
        if !follows || self.pages == BATCH {
            self.flush()?;
            (self.first, self.is_store) = (block, is_store);
        }
        let at = self.pages * self.page;
        self.pages += 1;
        Ok(&mut self.bytes.bytes()[at..][..self.page])
    }

    fn flush(&mut self) -> Result<(), zram::Absent> {
        match (std::mem::take(&mut self.pages), self.is_store) {
            (0, _) => {}
            (pages, false) => self.device.discard(self.first, pages)?,
            (pages, true) => {
                let bytes = &self.bytes.as_slice()[..pages * self.page];
                self.device.write(self.first, bytes)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::trace::Trace;

    #[test]
    fn what_differs_is_counted() {
        assert_eq!(differing(b"abc", b"abc"), 0);
        assert_eq!(differing(b"abc", b"xbz"), 2);
        assert_eq!(differing(b"abc", b"ab"), 1);
    }

    #[test]
    fn a_sample_of_the_trace_comes_back_whole_from_both() {
        let workload = Workload::of_trace(&Trace::load().unwrap(), 64);
        let outcome = in_pool(&workload, &workload.directories, Classes::Default, 0).unwrap();
        assert_eq!((outcome.wrong, outcome.figures.len()), (0, workload.directories.len()));
        let first = outcome.figures[0];
        assert!(first.percent() >= first.percent_plain() && first.percent_plain() >= 0.0);

        let zram = match in_zram(&workload, &workload.directories, true, 5.0) {
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
            Ok(zram) => zram,
        };
        for (ours, theirs) in outcome.figures.iter().zip(&zram.figures) {
            assert_eq!(ours.original, theirs.original);
            // The pages are made to be that long, within some bytes.
            let apart = (ours.stored / theirs.stored - 1.0).abs();
            assert!(apart < 0.02, "{ours:?} {theirs:?}");
        }
    }
}
