//! [`Workload`]: what is stored and given up, step by step, and with which contents.
//!
//! That of a [`Tree`]: all its pages, then the directories in order. That of the [`Trace`] of a
//! device that had one, with contents [made](Made) to its lengths. And from either: all of it,
//! then a half of the files that are left, by chance, four times.

use std::io;

use super::made::{Made, PAGE};
use super::trace::{Change, Trace, BLOCKS, STEPS};
use super::tree::Tree;
use crate::reserve::keyed::Random;

/// How often half of the files go.
const HALVINGS: usize = 4;

/// Blocks of a run that a sample of the trace takes or leaves.
const RUN: usize = 64;

/// Pages of a file of the trace, in the middle: it does not tell where files end.
const FILE_PAGES: u64 = 5;

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

/// The blocks of a file.
type File = Vec<Change>;

impl Workload {
    /// That of a tree.
    pub(super) fn of_tree(tree: Tree) -> Self {
        let entries = &tree.entries;
        let file = |first: usize, pages: usize| -> File {
            // The length stands for the contents, of which a block has only one.
            (first..first + pages).map(|block| Change { block, len: PAGE }).collect()
        };
        let files: Vec<File> = entries.iter().map(|entry| file(entry.first, entry.pages)).collect();
        let blocks = entries.iter().map(|entry| entry.pages).sum();
        let mut directories = vec![Step { name: STEPS[1].into(), changes: file(0, blocks) }];
        for (nth, name) in tree.removals().iter().enumerate() {
            let gone = entries.iter().zip(&files).filter(|(entry, _)| entry.goes == Some(nth));
            let changes = gone.flat_map(|(_, file)| drops(file)).collect();
            directories.push(Step { name: format!("-{name}"), changes });
        }
        Self { halves: halves(files), directories, blocks, source: Source::Tree(tree) }
    }

    /// That of the trace, or of one run of blocks in `nth` of it.
    pub(super) fn of_trace(trace: &Trace, nth: usize) -> Self {
        let taken = |change: &Change| change.block / RUN % nth == 0;
        let changes = |step: usize| trace.changes(step).filter(taken);
        let mut directories =
            vec![Step { name: STEPS[1].into(), changes: changes(0).chain(changes(1)).collect() }];
        for (step, name) in STEPS.iter().enumerate().skip(2) {
            directories.push(Step { name: (*name).into(), changes: changes(step).collect() });
        }
        let mut random = Random::new(3);
        let mut stored = changes(1).filter(|change| change.len > 0).peekable();
        let mut files: Vec<File> = Vec::new();
        while stored.peek().is_some() {
            let pages = 1 + random.below(2 * FILE_PAGES - 1) as usize;
            files.push(stored.by_ref().take(pages).collect());
        }
        let source = Source::Trace(Made::new());
        Self { source, directories, halves: halves(files), blocks: BLOCKS }
    }

    /// Whether the contents are a tree's, which a codec shortens.
    pub(super) fn is_tree(&self) -> bool {
        matches!(self.source, Source::Tree(_))
    }

    /// Bytes of what is stored for a change, in `buffer` or elsewhere: a page of the tree, or an
    /// object of the trace's length.
    pub(super) fn object<'a>(
        &'a self,
        change: Change,
        buffer: &'a mut [u8],
    ) -> io::Result<&'a [u8]> {
        match &self.source {
            Source::Trace(made) => Ok(made.object(change.block as u64, change.len)),
            Source::Tree(tree) => {
                tree.read(change.block, buffer)?;
                Ok(buffer)
            }
        }
    }

    /// Fills `page` with what a device gets in that block's place.
    pub(super) fn page(&self, change: Change, page: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::Trace(made) => {
                made.page(change.block as u64, change.len, page);
                Ok(())
            }
            Source::Tree(tree) => tree.read(change.block, page),
        }
    }
}

fn drops(file: &File) -> impl Iterator<Item = Change> + '_ {
    file.iter().map(|change| Change { len: 0, ..*change })
}

/// All files, then halves of them gone.
fn halves(mut left: Vec<File>) -> Vec<Step> {
    let mut steps = vec![Step { name: "all".into(), changes: left.concat() }];
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
        let workload = Workload::of_trace(&Trace::load().unwrap(), 8);
        for (steps, count) in
            [(&workload.directories, STEPS.len() - 1), (&workload.halves, HALVINGS + 1)]
        {
            let mut there = vec![false; workload.blocks];
            let mut counts = Vec::new();
            for change in steps.iter().flat_map(|step| &step.changes) {
                assert!(change.len <= PAGE);
                let had = std::mem::replace(&mut there[change.block], change.len > 0);
                assert!(had || change.len > 0);
            }
            counts.extend(steps.iter().map(|step| step.changes.len()));
            assert_eq!(counts.len(), count);
        }
        let [all, half] = [0, 1].map(|nth| &workload.halves[nth].changes);
        let share = half.len() as f64 / all.len() as f64;
        assert!((0.45..0.55).contains(&share), "{share}");
        // By chance: of the first files as many as of the last.
        let mut blocks: Vec<usize> = all.iter().map(|change| change.block).collect();
        blocks.sort_unstable();
        let first = half.iter().filter(|change| change.block < blocks[blocks.len() / 2]).count();
        let share = first as f64 / half.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
