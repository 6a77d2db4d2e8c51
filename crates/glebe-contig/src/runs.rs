//! Computes runs from page frames.
//!
//! Positions and lengths are base pages. Pages within a *grain* are contiguous by construction. A
//! process may lose access to its pagemap; all frames are then hidden.

use std::io;

use super::{Drift, Part, Proof, Run};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::memory::pagemap::{Entry, Pagemap};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages, Pfn};

pub(super) fn read(mapping: &Mapping, grain: PageSize) -> Result<(Vec<Run>, Proof), OsError> {
    let entries = entries(pagemap()?.as_ref(), mapping.addr(), mapping.len(), grain)?;
    Ok(join(&entries, grain.bytes().pages_down(page_size())))
}

pub(super) fn read_parts(mapping: &Mapping, parts: &[Part]) -> Result<(Vec<Run>, Proof), OsError> {
    if let [part] = parts {
        return read(mapping, part.source.grain());
    }
    let (page, map) = (page_size(), pagemap()?);
    let (mut all, mut proof) = (Vec::<Run>::new(), Proof::Frames);
    for part in parts {
        let grain = part.source.grain();
        let [start, len] =
            [part.pages.start(), part.pages.len()].map(|n| Pages::new(n).bytes(page));
        let entries = entries(map.as_ref(), mapping.addr() + start.as_usize(), len, grain)?;
        let (runs, rests_on) = join(&entries, grain.bytes().pages_down(page));
        proof = proof.weaker(rests_on);
        for run in runs {
            let pages = extent(run.pages.start() + part.pages.start(), run.pages.len());
            push_run(&mut all, Run { pages, ..run });
        }
    }
    Ok((all, proof))
}

fn pagemap() -> Result<Option<Pagemap>, OsError> {
    match Pagemap::open() {
        Ok(map) => Ok(Some(map)),
        Err(error) if is_closed(error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_closed(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound)
}

fn entries(
    map: Option<&Pagemap>,
    addr: usize,
    len: Bytes,
    grain: PageSize,
) -> Result<Vec<Entry>, OsError> {
    let hidden = || Ok(vec![Entry::Hidden; len.pages_up(grain).as_usize()]);
    map.map_or_else(hidden, |map| map.entries(addr, len, grain))
}

/// Adds a run, or extends the last.
pub fn push_run(runs: &mut Vec<Run>, run: Run) {
    if let (Some(last), Some(pfn)) = (runs.last_mut(), run.pfn) {
        let follows = last.pages.end() == run.pages.start()
            && last.pfn.map(|first| first.plus(Pages::new(last.pages.len()))) == Some(pfn);
        if follows {
            last.pages = extent(last.pages.start(), last.pages.len() + run.pages.len());
            return;
        }
    }
    runs.push(run);
}

pub(super) fn longest(runs: &[Run]) -> Pages {
    Pages::new(runs.iter().map(|run| run.pages.len()).max().unwrap_or(1))
}

/// Joins grains with adjacent frames. One hidden frame limits the proof to `Proof::Within`.
pub(super) fn join(entries: &[Entry], grain: Pages) -> (Vec<Run>, Proof) {
    let hidden = entries.contains(&Entry::Hidden);
    if hidden && grain.get() == 1 {
        return (Vec::new(), Proof::Within(grain));
    }
    let mut runs: Vec<Run> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let start = index as u64 * grain.get();
        let pfn = match entry {
            Entry::Absent => continue,
            entry => entry.frame(),
        };
        push_run(&mut runs, Run { pages: extent(start, grain.get()), pfn });
    }
    (runs, if hidden { Proof::Within(grain) } else { Proof::Frames })
}

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).expect("positions of a mapping, and not none of them")
}

pub(super) fn drift(
    mapping: &Mapping,
    runs: &[Run],
    grain: PageSize,
) -> Result<Vec<Drift>, OsError> {
    if mapping.is_lost_by_fork() {
        let source = io::Error::new(io::ErrorKind::NotFound, "not inherited by a forked child");
        return Err(OsError::new("verify", format!("{:#x}", mapping.addr()), source));
    }
    let entries = Pagemap::open()?.entries(mapping.addr(), mapping.len(), grain)?;
    Ok(compare(runs, &entries, grain.bytes().pages_down(page_size())))
}

fn compare(runs: &[Run], entries: &[Entry], grain: Pages) -> Vec<Drift> {
    let mut drifts: Vec<Drift> = Vec::new();
    for run in runs {
        let mut position = run.pages.start();
        while position < run.pages.end() {
            let was = run.pfn.map(|pfn| pfn.plus(Pages::new(position - run.pages.start())));
            let now = entries.get(usize::try_from(position / grain.get()).unwrap_or(usize::MAX));
            let now = now.copied().unwrap_or(Entry::Absent);
            let moved = match was {
                Some(pfn) => now != Entry::Frame(pfn) && now != Entry::Hidden,
                None => now == Entry::Absent,
            };
            if moved {
                push(&mut drifts, position, grain, was.unwrap_or_default(), now.frame());
            }
            position += grain.get();
        }
    }
    drifts
}

fn push(drifts: &mut Vec<Drift>, position: u64, grain: Pages, was: Pfn, now: Option<Pfn>) {
    if let Some(last) = drifts.last_mut() {
        let behind = Pages::new(last.pages.len());
        let together = last.pages.end() == position
            && last.was.plus(behind) == was
            && last.now.map(|pfn| pfn.plus(behind)) == now;
        if together {
            last.pages = extent(last.pages.start(), last.pages.len() + grain.get());
            return;
        }
    }
    drifts.push(Drift { pages: extent(position, grain.get()), was, now });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(numbers: &[u64]) -> Vec<Entry> {
        numbers.iter().map(|n| Entry::Frame(Pfn::new(*n))).collect()
    }

    fn run(start: u64, len: u64, pfn: Option<u64>) -> Run {
        Run { pages: extent(start, len), pfn: pfn.map(Pfn::new) }
    }

    #[test]
    fn adjacent_frames_join_and_descending_ones_do_not() {
        let entries = frames(&[8, 12, 16, 12, 8, 100]);
        let (runs, proof) = join(&entries, Pages::new(4));
        let expected =
            [run(0, 12, Some(8)), run(12, 4, Some(12)), run(16, 4, Some(8)), run(20, 4, Some(100))];
        assert_eq!((runs.as_slice(), proof), (expected.as_slice(), Proof::Frames));
        assert_eq!(longest(&runs), Pages::new(12));
    }

    #[test]
    fn an_absent_page_ends_a_run() {
        let entries = [Entry::Frame(Pfn::new(1)), Entry::Absent, Entry::Frame(Pfn::new(3))];
        let (runs, _) = join(&entries, Pages::new(1));
        assert_eq!(runs, [run(0, 1, Some(1)), run(2, 1, Some(3))]);
        let entries = [Entry::Frame(Pfn::new(1)), Entry::Absent, Entry::Frame(Pfn::new(2))];
        assert_eq!(join(&entries, Pages::new(1)).0.len(), 2);
    }

    #[test]
    fn hidden_frames_prove_a_grain_and_no_more() {
        let (runs, proof) = join(&[Entry::Hidden, Entry::Hidden], Pages::new(512));
        assert_eq!(runs, [run(0, 512, None), run(512, 512, None)]);
        assert_eq!(proof, Proof::Within(Pages::new(512)));
        let (runs, proof) = join(&[Entry::Hidden, Entry::Hidden], Pages::new(1));
        assert_eq!((runs.len(), proof), (0, Proof::Within(Pages::new(1))));
        assert_eq!(longest(&runs), Pages::new(1));
    }

    #[test]
    fn drift_lists_what_moved() {
        let (runs, _) = join(&frames(&[10, 11, 12, 13, 20]), Pages::new(1));
        assert_eq!(compare(&runs, &frames(&[10, 11, 12, 13, 20]), Pages::new(1)), []);
        let mut now = frames(&[10, 31, 32, 13, 20]);
        now[4] = Entry::Absent;
        let expected = [
            Drift { pages: extent(1, 2), was: Pfn::new(11), now: Some(Pfn::new(31)) },
            Drift { pages: extent(4, 1), was: Pfn::new(20), now: None },
        ];
        assert_eq!(compare(&runs, &now, Pages::new(1)), expected);
    }
}
