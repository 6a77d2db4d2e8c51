//! [`Workload`]: what is stored and given up, step by step, and with which contents.
//!
//! That of a [`Tree`]: all its pages, then the directories in order. Without a tree that of the
//! [`Trace`] of a device that had one, with contents [made](Made) to its lengths. And from either:
//! all of it, then a half of the files that are left, by chance, four times.

use std::io;

use glebe::sys::page_size;

use super::made::{Made, PAGE};
use super::trace::{Change, Trace, STEPS};
use super::tree::Tree;
use crate::reserve::keyed::Random;

/// How often half of the files go.
const HALVINGS: usize = 4;

/// Blocks of a run that a sample of the trace takes or leaves.
const RUN: usize = 64;

/// Pages of a file of the tree, in the middle; the trace does not tell where files end.
const FILE_PAGES: u64 = 5;

/// Of pages that LZ4 makes no shorter than this zram keeps all bytes: with 8 bytes in front they
/// go to no class but that of a page.
const AS_IT_IS: usize = 3625;

/// What is done before the pool is looked at.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) changes: Vec<Change>,
}

/// Where contents come from.
#[derive(Debug)]
enum Source {
    Tree(Tree),
    Trace(Made),
}

/// Steps and contents.
#[derive(Debug)]
pub(super) struct Workload {
    source: Source,
    /// One directory after the other.
    pub(super) directories: Vec<Step>,
    /// One half after the other.
    pub(super) halves: Vec<Step>,
    /// Blocks of a device that has room for all.
    pub(super) blocks: usize,
}

/// First block and blocks.
type Run = Vec<Change>;

impl Workload {
    /// That of a tree.
    pub(super) fn of_tree(tree: Tree) -> Self {
        // The length stands for the contents, of which a block has only one.
        let stores = |first: usize, pages: usize| {
            (first..first + pages).map(|block| Change::Store { block, len: PAGE })
        };
        let entries = tree.entries();
        let files: Vec<Run> =
            entries.iter().map(|entry| stores(entry.first, entry.pages).collect()).collect();
        let blocks = entries.iter().map(|entry| entry.pages).sum();
        let mut directories =
            vec![Step { name: STEPS[1].into(), changes: stores(0, blocks).collect() }];
        for (nth, name) in tree.removals().iter().enumerate() {
            let gone = entries.iter().zip(&files).filter(|(e, _)| e.goes == Some(nth));
            let changes = gone.flat_map(|(_, file)| drops(file)).collect();
            directories.push(Step { name: format!("-{name}"), changes });
        }
        let halves = halves(files);
        Self { source: Source::Tree(tree), directories, halves, blocks }
    }

    /// That of the trace, or of one run of blocks in `nth` of it.
    pub(super) fn of_trace(trace: &Trace, nth: usize) -> Self {
        let taken = |change: &Change| {
            let (Change::Store { block, .. } | Change::Drop { block }) = *change;
            block / RUN % nth == 0
        };
        let changes = |step: usize| trace.changes(step).filter(taken);
        let mut directories =
            vec![Step { name: STEPS[1].into(), changes: changes(0).chain(changes(1)).collect() }];
        for (step, name) in STEPS.iter().enumerate().skip(2) {
            directories.push(Step { name: (*name).into(), changes: changes(step).collect() });
        }
        let mut random = Random::new(3);
        let mut files: Vec<Run> = Vec::new();
        let mut left = 0;
        for change in changes(1).filter(|change| matches!(change, Change::Store { .. })) {
            if left == 0 {
                left = 1 + random.below(2 * FILE_PAGES - 1);
                files.push(Run::new());
            }
            left -= 1;
            files.last_mut().expect("just pushed").push(change);
        }
        let halves = halves(files);
        let blocks = super::trace::BLOCKS;
        Self { source: Source::Trace(Made::new()), directories, halves, blocks }
    }

    /// The same steps with contents [made](Made) to the lengths that LZ4 makes of a tree's pages,
    /// as the trace has them: one that hardly shrinks stays a page, and one that a word fills over
    /// and over is not stored.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub(super) fn coded(&self) -> io::Result<Self> {
        let mut page = vec![0; page_size().bytes().as_usize()];
        let mut coded = vec![0; lzzzz::lz4::max_compressed_size(page.len())];
        let mut lengths = vec![None; self.blocks];
        for (block, length) in lengths.iter_mut().enumerate() {
            self.page(block, PAGE, &mut page)?;
            if !is_filled(&page) {
                let len = lzzzz::lz4::compress(&page, &mut coded, lzzzz::lz4::ACC_LEVEL_DEFAULT);
                let shrunk = len.ok().filter(|len| *len < AS_IT_IS);
                *length = Some(shrunk.unwrap_or(PAGE));
            }
        }
        let change = |change: &Change| match *change {
            Change::Store { block, .. } => lengths[block].map(|len| Change::Store { block, len }),
            Change::Drop { block } => lengths[block].map(|_| Change::Drop { block }),
        };
        let same = |step: &Step| Step {
            name: step.name.clone(),
            changes: step.changes.iter().filter_map(change).collect(),
        };
        let directories = self.directories.iter().map(same).collect();
        let halves = self.halves.iter().map(same).collect();
        let (source, blocks) = (Source::Trace(Made::new()), self.blocks);
        Ok(Self { source, directories, halves, blocks })
    }

    /// Whether the contents are a tree's.
    pub(super) fn is_tree(&self) -> bool {
        matches!(self.source, Source::Tree(_))
    }

    /// Bytes of an object before it was coded.
    pub(super) fn object_bytes(&self) -> usize {
        match self.source {
            Source::Trace(_) => PAGE,
            Source::Tree(_) => page_size().bytes().as_usize(),
        }
    }

    /// Bytes of what is stored in a block's place, in `buffer` or elsewhere: a page of the tree,
    /// or an object of the trace's length.
    pub(super) fn object<'a>(
        &'a self,
        block: usize,
        len: usize,
        buffer: &'a mut [u8],
    ) -> io::Result<&'a [u8]> {
        match &self.source {
            Source::Trace(made) => Ok(made.object(block as u64, len)),
            Source::Tree(tree) => {
                tree.read(block, buffer)?;
                Ok(buffer)
            }
        }
    }

    /// Fills `page` with what a device gets in that block's place.
    pub(super) fn page(&self, block: usize, len: usize, page: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::Trace(made) => {
                made.page(block as u64, len, page);
                Ok(())
            }
            Source::Tree(tree) => tree.read(block, page),
        }
    }
}

/// Whether a page is one word over and over.
fn is_filled(page: &[u8]) -> bool {
    let (first, rest) = page.split_at(size_of::<u64>());
    rest.chunks_exact(first.len()).all(|word| word == first)
}

fn drops(file: &Run) -> impl Iterator<Item = Change> + '_ {
    file.iter().filter_map(|change| match *change {
        Change::Store { block, .. } => Some(Change::Drop { block }),
        Change::Drop { .. } => None,
    })
}

/// All files, then halves of them gone.
fn halves(files: Vec<Run>) -> Vec<Step> {
    let all = files.iter().flatten().copied().collect();
    let mut steps = vec![Step { name: "all".into(), changes: all }];
    let mut left = files;
    let mut random = Random::new(5);
    for nth in 1..=HALVINGS {
        for from in (1..left.len()).rev() {
            left.swap(from, random.below(from as u64 + 1) as usize);
        }
        let gone = left.split_off(left.len().div_ceil(2));
        let changes = gone.iter().flat_map(drops).collect();
        steps.push(Step { name: format!("half {nth}"), changes });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_dropped_that_is_not_there() {
        let trace = Trace::load().unwrap();
        let workload = Workload::of_trace(&trace, 8);
        assert_eq!(workload.directories.len(), STEPS.len() - 1);
        assert_eq!(workload.halves.len(), HALVINGS + 1);
        for steps in [&workload.directories, &workload.halves] {
            let mut there = vec![false; workload.blocks];
            let mut counts = Vec::new();
            for step in steps {
                for change in &step.changes {
                    match *change {
                        Change::Store { block, len } => {
                            assert!(len > 0 && len <= PAGE);
                            there[block] = true;
                        }
                        Change::Drop { block } => {
                            assert!(std::mem::replace(&mut there[block], false));
                        }
                    }
                }
                counts.push(there.iter().filter(|is| **is).count());
            }
            assert!(counts.is_sorted_by(|a, b| a > b), "{counts:?}");
        }
        let left = |step: &Step| step.changes.len() as f64;
        let share = left(&workload.halves[1]) / left(&workload.halves[0]);
        assert!((0.45..0.55).contains(&share), "{share}");
        // By chance: of the first files as many as of the last.
        let block = |change: &Change| match *change {
            Change::Store { block, .. } | Change::Drop { block } => block,
        };
        let mut all: Vec<usize> = workload.halves[0].changes.iter().map(block).collect();
        all.sort_unstable();
        let middle = all[all.len() / 2];
        let gone = &workload.halves[1].changes;
        let first = gone.iter().filter(|change| block(change) < middle).count();
        let share = first as f64 / gone.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
