//! [`Workload`] lists what a benchmark stores and drops, step by step.
//!
//! `directories` stores a [`Tree`] and drops its directories in order, or repeats the [`trace`] of
//! a device that held a kernel tree, with [made](Made) contents of the traced lengths. `halves`
//! stores all files, then drops a random half of the remaining files four times.

use std::io;
use std::ops::Range;

use super::trace::{self, Change, Made, BLOCKS, PAGE, STEPS};
use super::tree::{Tree, DIRECTORIES};
use crate::reserve::keyed::Random;

/// Times that half of the files are dropped.
const HALVINGS: usize = 4;

/// Blocks that a sample takes or leaves together.
const RUN: usize = 64;

/// Most pages of a file. Files are made up, because the trace has no file boundaries.
const FILE_PAGES_MAX: u64 = 9;

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
    pub(super) directories: Vec<Step>,
    pub(super) halves: Vec<Step>,
    pub(super) blocks: usize,
}

type File = Vec<Change>;

impl Workload {
    pub(super) fn of_tree(tree: Tree) -> Self {
        // Any length above 0 will do, because a tree's block is always read as a whole page.
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

    /// Uses every `nth` run of `RUN` blocks of the trace.
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
        steps[0].extend(untar);
        let named = STEPS[1..].iter().zip(steps);
        let directories = named.map(|(name, changes)| Step { name: (*name).into(), changes });
        let (directories, source) = (directories.collect(), Source::Trace(Made::new()));
        Ok(Self { source, directories, halves: halves(files), blocks: BLOCKS })
    }

    pub(super) fn is_tree(&self) -> bool {
        matches!(self.source, Source::Tree(_))
    }

    /// Returns a page of the tree, or an object of the trace (a page if `plain`). `buffer` has room
    /// for a page.
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
        // About equally many of the first and the last files.
        let middle = all[all.len() / 2].block;
        let first = half.iter().filter(|change| change.block < middle).count();
        let share = first as f64 / half.len() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
