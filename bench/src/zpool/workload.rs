//! [`Workload`]: what is stored and given up, step by step, and with which contents.
//!
//! That of a [`Tree`]: all its pages, then the directories in order. That of the [`trace`] of a
//! device that had one, with contents [made](Made) to its lengths. And from either: all of it,
//! then a half of the files that are left, by chance, four times.

use std::io;
use std::ops::Range;

use super::trace::{self, Change, Made, BLOCKS, PAGE, STEPS};
use super::tree::{Tree, DIRECTORIES};
use crate::reserve::keyed::Random;

/// How often half of the files go.
const HALVINGS: usize = 4;

/// Blocks of a run that a sample of the trace takes or leaves.
const RUN: usize = 64;

/// The trace does not tell where files end; they are made up, of 1 to 9 pages.
const FILE_PAGES_MAX: u64 = 9;

/// What is done before the pool is looked at.
pub(super) struct Step {
    pub(super) name: String,
    pub(super) changes: Vec<Change>,
}

enum Source {
    Tree(Tree),
    Trace(Made),
}

pub(super) struct Workload {
    source: Source,
    /// One directory after the other.
    pub(super) directories: Vec<Step>,
    /// One half after the other.
    pub(super) halves: Vec<Step>,
    /// Blocks of a device that has room for all.
    pub(super) blocks: usize,
}

type File = Vec<Change>;

impl Workload {
    pub(super) fn of_tree(tree: Tree) -> Self {
        // The length stands for the contents, of which a block has only one.
        let file = |pages: &Range<usize>| -> File {
            pages.clone().map(|block| Change { block, len: PAGE }).collect()
        };
        let files: Vec<File> = tree.files.iter().map(|(pages, _)| file(pages)).collect();
        let (all, blocks) = (files.concat(), tree.files.last().map_or(0, |(last, _)| last.end));
        let mut directories = vec![Step { name: STEPS[1].into(), changes: all }];
        for (nth, name) in DIRECTORIES.iter().enumerate() {
            let goes = |at: &usize| tree.files[*at].1 == Some(nth);
            let gone = (0..files.len()).filter(goes);
            let changes = gone.flat_map(|at| drops(&files[at])).collect();
            directories.push(Step { name: format!("-{name}"), changes });
        }
        Self { halves: halves(files), directories, blocks, source: Source::Tree(tree) }
    }

    /// That of the trace, or of one run of blocks in `nth` of it.
    pub(super) fn of_trace(nth: usize) -> io::Result<Self> {
        let mut steps = trace::load()?;
        for changes in &mut steps {
            changes.retain(|change| change.block / RUN % nth == 0);
        }
        let untar = steps.remove(1);
        let mut stored: &[Change] =
            &untar.iter().copied().filter(|change| change.len > 0).collect::<Vec<_>>();
        let (mut files, mut random): (Vec<File>, _) = (Vec::new(), Random::new(3));
        while !stored.is_empty() {
            let pages = 1 + random.below(FILE_PAGES_MAX);
            let (file, rest) = stored.split_at(stored.len().min(pages as usize));
            files.push(file.to_vec());
            stored = rest;
        }
        // What made the file system goes with what it was made for.
        steps[0].extend(untar);
        let named = STEPS[1..].iter().zip(steps);
        let directories = named.map(|(name, changes)| Step { name: (*name).into(), changes });
        let (directories, source) = (directories.collect(), Source::Trace(Made::new()));
        Ok(Self { source, directories, halves: halves(files), blocks: BLOCKS })
    }

    /// Whether the contents are a tree's, which a codec shortens.
    pub(super) fn is_tree(&self) -> bool {
        matches!(self.source, Source::Tree(_))
    }

    /// The bytes that a change stores: of the tree a page, of the trace an object of the coded
    /// length, or a page if it is `plain`. Pages are put into `buffer`, which has room for one.
    pub(super) fn contents<'a>(
        &'a self,
        change: Change,
        plain: bool,
        buffer: &'a mut [u8],
    ) -> io::Result<&'a [u8]> {
        match &self.source {
            Source::Tree(tree) => tree.read(change.block, buffer)?,
            Source::Trace(made) if plain => made.page(change.block as u64, change.len, buffer),
            Source::Trace(made) => return Ok(made.object(change.block as u64, change.len)),
        }
        Ok(buffer)
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
        let workload = Workload::of_trace(8).unwrap();
        for (steps, count) in [(&workload.directories, 10), (&workload.halves, 5)] {
            let mut there = vec![false; workload.blocks];
            for change in steps.iter().flat_map(|step| &step.changes) {
                assert!(change.len <= PAGE);
                let had = std::mem::replace(&mut there[change.block], change.len > 0);
                assert!(had || change.len > 0);
            }
            assert_eq!(steps.len(), count);
        }
        let [all, half] = [0, 1].map(|nth| &workload.halves[nth].changes);
        let share = half.len() as f64 / all.len() as f64;
        assert!((0.45..0.55).contains(&share), "{share}");
        // By chance: of the first files as many as of the last.
        let middle = all[all.len() / 2].block;
        let first = half.iter().filter(|change| change.block < middle).count();
        let share = first as f64 / half.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
