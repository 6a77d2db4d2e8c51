//! The benchmark `zpool` compares [`glebe::zpool`], zram and allocators by overhead: the memory
//! held beyond the stored bytes. It also times stores, loads, compaction, the return of lent pages,
//! and small objects that come and go.

mod callback;
mod churn;
mod malloc;
mod overhead;
mod speed;
mod store;
mod trace;
mod tree;
mod workload;
mod zram;

use std::path::Path;

use glebe::page_size;
use glebe::units::Bytes;
use memmap2::MmapMut;

use crate::report::Report;
use crate::Outcome;
use speed::BLOCK;
use store::aligned;
use trace::Change;
use tree::Tree;
use workload::Workload;

pub(crate) use callback::reserve;
pub(crate) use malloc::inside;

pub(crate) fn run(report: &mut Report) -> Outcome {
    // The benchmark uses one in `files` files of the tree and one in `runs` runs of the trace. It
    // stores and loads `bytes` bytes, in `count` rounds.
    let (files, runs, bytes, count) = report.plan((64, 32, 2 << 20, 1), (1, 1, 128 << 20, 9));
    let traced = Workload::of_trace(runs)?;
    let tree = tree(files, report)?;
    overhead::measure(runs, &traced, tree.as_ref(), report)?;
    overhead::compaction(&traced, count.min(3), report)?;
    drop(traced);
    let (pages, what) = pages(tree.as_ref(), bytes, &report.options.scratch())?;
    report
        .note(&format!("store, load, threads: pages of {what}, in runs of {RUN} spread over it."));
    drop(tree);
    speed::measure(&pages, count, report)?;
    speed::threads(&pages, count, report)?;
    drop(pages);
    callback::measure(8 * count, report)?;
    churn::measure(count, report)
}

fn tree(nth: usize, report: &mut Report) -> Outcome<Option<Workload>> {
    report.note(
        "trace: of a device that had a kernel source tree. The pool has random bytes of each \
         object's length without a codec; zram has pages that LZ4 makes about as long. Random \
         deletion: files of 1 to 9 pages are made up. A quick run does a part of it.",
    );
    let options = &report.options;
    let Some(dir) = options.tree.clone().or_else(|| tree::find(options.dir.as_deref())) else {
        report.note(
            "tree: no kernel source tree was found (in --dir or /usr/src, unpacked, as from \
             Debian's linux-source); --tree names any directory.",
        );
        return Ok(None);
    };
    let tree = Tree::pack(&dir, nth, usize::MAX, &options.scratch())?;
    report.note(&format!(
        "tree: {} in pages of {}, one file in {}; LZ4 on both sides. Of a tree without a kernel's \
         directories none goes.",
        dir.display(),
        page_size().bytes(),
        nth
    ));
    Ok(Some(Workload::of_tree(tree)))
}

const RUN: usize = 64;

/// Returns pages of files that every machine has, at most `len` bytes.
pub(crate) fn any_pages(len: Bytes, scratch: &Path) -> Outcome<MmapMut> {
    Ok(pages(None, len.as_usize(), scratch)?.0)
}

/// Returns pages from all over `tree` (or `OTHER`, if `tree` is missing or too small), and the name
/// of their source.
fn pages(tree: Option<&Workload>, len: usize, scratch: &Path) -> Outcome<(MmapMut, &'static str)> {
    const OTHER: &str = "/usr/lib";
    let page = page_size().bytes().as_usize();
    let most = len / page;
    let other;
    let (tree, what) = match tree.filter(|tree| tree.blocks >= most) {
        Some(tree) => (tree, "the tree"),
        None => {
            let files = Tree::pack(Path::new(OTHER), 1, most, scratch)?;
            other = Workload::of_tree(files);
            (&other, OTHER)
        }
    };
    let mut bytes = aligned(tree.blocks.min(most) * page / BLOCK * BLOCK)?;
    let (runs, count) = (tree.blocks / RUN, bytes.len() / page / RUN);
    for (nth, to) in bytes.chunks_exact_mut(page).enumerate() {
        let block = nth / RUN * runs / count * RUN + nth % RUN;
        tree.contents(Change { block, len: page }, true, to)?;
    }
    Ok((bytes, what))
}
