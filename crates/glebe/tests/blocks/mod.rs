//! Tests real memory blocks, as root. Tests restore their changes and take turns, because all
//! programs share the machine's blocks.
//!
//! # Safety
//! fork is called in a process that runs one test, and the parent waits for the child.
#![allow(unsafe_code)]

mod bank;
mod busy;
mod idle;
mod kills;
mod machine;
mod others;

use std::process::Stdio;
use std::time::Instant;

use glebe::contig::{Contig, Error, HeldBy, Proof, Source};
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::processes::process::effective_user;
use glebe::units::Bytes;
use glebe_testing::process::{child_of, is_child, passes};
use glebe_testing::time::is_long;

use machine::{assert_as_before, base, block_of, block_size, blocks, frames, movable, turn};

/// Returns true if the error says that the machine cannot serve a test now.
fn cannot(error: &Error) -> bool {
    let short = matches!(
        error,
        Error::BlocksShort { .. }
            | Error::NoRoomToEvacuate { .. }
            | Error::TooMuchMovable { .. }
            | Error::BlocksStuck { .. }
            | Error::BlocksTaken { .. }
            | Error::CgroupLimit { .. }
    );
    // The error says `lie idle` if the hugetlb pool has more idle pages than the blocks have room
    // for. glebe then takes no blocks.
    let short = short || matches!(error, Error::NoBlocks { why } if why.contains("lie idle"));
    if short {
        println!("skipped: {error}");
    }
    short
}

fn drawn(len: Bytes) -> Option<Contig> {
    match Contig::options().source(Source::Blocks).build(len) {
        Ok(memory) => Some(memory),
        Err(error) if cannot(&error) => None,
        Err(error) => panic!("{error}"),
    }
}

fn are_adjacent(frames: &[u64]) -> bool {
    frames.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]))
}

fn assert_one_run(memory: &Contig) {
    let frames = frames(std::process::id(), memory.mapping().addr(), memory.len().get());
    assert!(are_adjacent(&frames), "{:?}", memory.runs());
    assert_eq!((memory.runs().len(), memory.proof()), (1, Proof::Frames));
    assert_eq!(memory.runs()[0].pfn.unwrap().get(), frames[0]);
}

#[test]
fn memory_of_blocks_is_one_run_and_goes_back_where_it_was() {
    let Some(_turn) = turn() else { return };
    let (before, pool) = (blocks(), base());
    for len in [Bytes::new(1), Bytes::mib(100), Bytes::new(block_size())] {
        let begin = Instant::now();
        let Some(memory) = drawn(len) else { return };
        println!("{len}: {:?}, {:?}", begin.elapsed(), memory.why_not_better());
        assert_one_run(&memory);
        memory.mapping().write(Bytes::ZERO, &[1]);
        assert_eq!((memory.source(), memory.held_by()), (Source::Blocks, HeldBy::MovablePool));
        assert!(memory.why_not_pinned().unwrap().contains("movable"));
        assert_eq!(memory.certificate().held_by, HeldBy::MovablePool);
        let first = memory.runs()[0].pfn.unwrap().get();
        assert!(movable().contains(&block_of(first)));
        assert_eq!(memory.verify().unwrap(), []);
        let begin = Instant::now();
        drop(memory);
        println!("given back in {:?}", begin.elapsed());
        assert_as_before(&before);
        assert_eq!(base(), pool);
    }
}

#[test]
fn blocks_of_a_node_are_had() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let node = numa::online()[0];
    match Contig::options().source(Source::Blocks).node(node).build(Bytes::mib(100)) {
        Ok(memory) => {
            assert_one_run(&memory);
            memory.mapping().write(Bytes::ZERO, &[1]);
        }
        Err(error) if cannot(&error) => {}
        Err(error) => panic!("{error}"),
    }
    assert_as_before(&before);
}

#[test]
fn several_blocks_are_side_by_side() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(memory) = drawn(Bytes::new(2 * block_size())) else { return };
    assert_one_run(&memory);
    drop(memory);
    assert_as_before(&before);
}

#[test]
fn what_cannot_be_had_is_refused_before_anything_is_done() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let pinned = Contig::options().source(Source::Blocks).pin(true).build(Bytes::mib(2));
    assert!(matches!(pinned, Err(Error::NotPinned { .. })), "{pinned:?}");
    let file = Contig::options().source(Source::Blocks).mappable().build(Bytes::mib(2));
    assert!(matches!(file, Err(Error::NoBlocks { .. })), "{file:?}");
    for len in [Bytes::gib(1 << 10), Bytes::new(u64::MAX)] {
        let error = Contig::options().source(Source::Blocks).build(len).unwrap_err();
        let shown = error.to_string();
        assert!(cannot(&error) || matches!(error, Error::TooLarge { .. }), "{shown}");
    }
    assert_as_before(&before);
}

#[test]
fn a_forked_child_gives_nothing_back() {
    if is_child() {
        let Some(memory) = drawn(Bytes::mib(2)) else { return };
        let while_held = movable();
        // SAFETY: this process runs one test, so no other thread holds a lock that the child needs.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(memory);
            // SAFETY: `_exit` runs no exit handlers of the parent.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: `waitpid` writes nothing through null.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        assert_eq!(movable(), while_held);
        assert_eq!(memory.verify().unwrap(), []);
        return;
    }
    let Some(_turn) = turn() else { return };
    let before = blocks();
    assert!(passes(&mut child_of("blocks::a_forked_child_gives_nothing_back")));
    assert_as_before(&before);
}

#[test]
fn nobody_is_told_that_root_is_needed() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if is_child() {
        let refused = Contig::options().source(Source::Blocks).build(Bytes::mib(2)).unwrap_err();
        assert!(matches!(refused, Error::NoBlocks { .. }), "{refused}");
        assert_eq!(glebe::contig::mend_blocks(std::time::Duration::ZERO).unwrap(), [""; 0]);
        return;
    }
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let mut child = child_of("blocks::nobody_is_told_that_root_is_needed");
    match child.uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}

#[test]
fn several_processes_draw_at_once() {
    if is_child() {
        for _ in 0..if is_long() { 4 } else { 2 } {
            match Contig::options().source(Source::Blocks).build(Bytes::mib(64)) {
                Ok(memory) => {
                    assert_one_run(&memory);
                    memory.mapping().write(Bytes::mib(63), &[7]);
                    assert_eq!(memory.verify().unwrap(), []);
                }
                Err(error @ Error::BlocksTaken { .. }) => println!("{error}"),
                Err(error) => assert!(cannot(&error), "{error}"),
            }
        }
        return;
    }
    let Some(_turn) = turn() else { return };
    let (before, pool) = (blocks(), base());
    let child = || {
        let mut command = child_of("blocks::several_processes_draw_at_once");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(|_| child()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    assert_as_before(&before);
    assert_eq!(base(), pool);
}
