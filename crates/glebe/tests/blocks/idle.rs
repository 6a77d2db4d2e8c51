//! Tests allocations from memory blocks while there are idle pages of the hugetlb pool, on the same
//! node or another.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use glebe::contig::{mend_blocks, Contig, Error, Node, Source};
use glebe::internal::sys::machine::numa;
use glebe::units::Bytes;
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{slowed, wait_until};

use super::machine::{assert_as_before, block_size, blocks, record, turn_at_pool};
use super::{assert_one_run, cannot};
use crate::node_pool::{counts, is_all_on, several, Idle};

const PAGES: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(10);

fn drawn(node: Option<Node>, len: Bytes) -> Option<Contig> {
    let options = Contig::options().source(Source::Blocks);
    let memory = match node {
        Some(node) => options.node(node).build(len),
        None => options.build(len),
    };
    match memory {
        Ok(memory) => Some(memory),
        // Idle pages must not cause these errors.
        Err(error @ (Error::BlocksTaken { .. } | Error::NoBlocks { .. })) => panic!("{error}"),
        Err(error) if cannot(&error) => None,
        Err(error) => panic!("{error}"),
    }
}

fn draw_beside(node: Option<Node>, idle_on: Node) {
    let before = blocks();
    let Some(_idle) = Idle::on(idle_on, PAGES) else { return };
    let pool = counts(idle_on);
    let Some(memory) = drawn(node, Bytes::mib(64)) else { return };
    assert_one_run(&memory);
    assert!(node.is_none_or(|node| is_all_on(&memory, node)), "{node:?}: {:?}", memory.runs());
    memory.mapping().write(Bytes::mib(63), &[1]);
    assert_eq!(
        counts(idle_on)[1],
        pool[1],
        "idle pages on {idle_on} stay where they are: {node:?}"
    );
    drop(memory);
    // Another program may use idle pages for a moment.
    let what = format!("{node:?}, idle on {idle_on}: {pool:?} again");
    wait_until(&what, PATIENCE, || counts(idle_on) == pool);
    assert_as_before(&before);
}

#[test]
fn blocks_beside_idle_pages_of_the_pool_are_one_run() {
    let Some(_turn) = turn_at_pool() else { return };
    draw_beside(None, numa::online()[0]);
}

#[test]
fn blocks_of_each_node_are_had_whatever_lies_idle_on_which() {
    let Some(_turn) = turn_at_pool() else { return };
    let Some(nodes) = several() else { return };
    for node in nodes.iter().map(|node| Some(*node)).chain([None]) {
        for idle_on in &nodes {
            draw_beside(node, *idle_on);
        }
    }
}

#[test]
fn the_first_of_two_that_ends_leaves_the_idle_pages_to_the_second() {
    let Some(_turn) = turn_at_pool() else { return };
    let (before, node) = (blocks(), numa::online()[0]);
    let Some(_idle) = Idle::on(node, PAGES) else { return };
    let pool = counts(node);
    let Some(first) = drawn(Some(node), Bytes::mib(64)) else { return };
    let Some(second) = drawn(Some(node), Bytes::mib(64)) else { return };
    drop(first);
    assert_eq!(counts(node)[1], pool[1], "idle pages went");
    assert_eq!(second.verify().unwrap(), []);
    drop(second);
    assert_eq!(counts(node), pool);
    assert_as_before(&before);
}

#[test]
fn more_idle_pages_than_blocks_hold_are_not_kept_from_others() {
    let Some(_turn) = turn_at_pool() else { return };
    let (before, node) = (blocks(), numa::online()[0]);
    let Some(_idle) = Idle::on(node, (block_size() >> 21) + 1) else { return };
    let pool = counts(node);
    let refused = Contig::options().source(Source::Blocks).node(node).build(Bytes::new(1));
    match refused {
        Err(error @ Error::NoBlocks { .. }) => {
            let shown = error.to_string();
            assert!(shown.contains(&format!("{} pages of 2 MiB", pool[1])), "{shown}");
        }
        Err(error) if cannot(&error) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((counts(node), record().as_str()), (pool, ""));
    assert_as_before(&before);
}

#[test]
fn a_process_that_is_killed_leaves_the_idle_pages_and_no_others() {
    const TEST: &str = "blocks::idle::a_process_that_is_killed_leaves_the_idle_pages_and_no_others";
    if is_child() {
        let Some(_memory) = drawn(None, Bytes::mib(64)) else { return };
        // SAFETY: `kill` ends this process only.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        return;
    }
    let Some(_turn) = turn_at_pool() else { return };
    let (before, node) = (blocks(), numa::online()[0]);
    let Some(_idle) = Idle::on(node, PAGES) else { return };
    let pool = counts(node);
    let status = child_of(TEST).stdout(Stdio::null()).status().unwrap();
    if status.success() {
        println!("skipped: the child had no blocks");
        return;
    }
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    wait_until("the pool is as before", PATIENCE, || counts(node) == pool);
    mend_blocks(slowed(PATIENCE)).unwrap();
    assert_eq!(counts(node), pool);
    assert_as_before(&before);
}
