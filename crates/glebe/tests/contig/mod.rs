//! Tests contiguous memory as root and as nobody.
//!
//! Other processes may use the hugetlb pools during the tests. Tests therefore assert only the
//! *base* of a pool: its persistent pages, read under the pool lock. Programs that respect the lock
//! keep the base. After a change by another program, a test repeats its steps.
//!
//! # Safety
//! fork, waitpid and a timer with an empty handler are used in processes that run one test.
#![allow(unsafe_code)]

mod certificate;
mod closed;
mod nodes;
mod plans;
pub mod pool;
mod reserve;
mod signals;
pub mod use_all;

use glebe::contig::{Contig, Error, HeldBy, Proof, Source};
use glebe::internal::sys::processes::process::effective_user;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe_testing::process::{child_of, is_child, passes};

use glebe_testing::turn::{Turn, POOL};
use pool::Machine;

const NOBODY: u32 = 65534;

fn machine() -> Option<(Machine, Option<Turn>)> {
    let turn = Turn::shared(POOL);
    Machine::privileged().map(|machine| (machine, turn))
}

/// Returns true if the machine has no transparent huge pages, and prints that.
fn lacks_thp(error: &Error) -> bool {
    let lacks = error.to_string().contains("[never]");
    if lacks {
        println!("skipped: {error}");
    }
    lacks
}

/// Reads frames without the library.
fn frames(addr: usize, len: u64) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let page = page_size().bytes().get();
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut bytes = vec![0; (len / page * 8) as usize];
    map.read_exact_at(&mut bytes, addr as u64 / page * 8).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.map(|word| if word >> 63 == 1 { word & ((1 << 55) - 1) } else { u64::MAX }).collect()
}

#[test]
fn runs_are_what_the_kernel_says() {
    let Some(_machine) = machine() else { return };
    for source in [Source::HUGETLB_2M, Source::Thp, Source::Plain] {
        let memory = match Contig::options().source(source).build(Bytes::mib(24)) {
            Ok(memory) => memory,
            Err(error @ (Error::PoolShort { .. } | Error::NotHuge { .. })) => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) if lacks_thp(&error) => continue,
            Err(error) => panic!("{error}"),
        };
        let moved = memory.verify().unwrap();
        let frames = frames(memory.mapping().addr(), memory.len().get());
        let still = moved.is_empty() && memory.verify().unwrap().is_empty();
        if memory.held_by() == HeldBy::Nothing && !still {
            println!("skipped: the kernel moved pages of {source}");
            continue;
        }
        assert_eq!(memory.proof(), Proof::Frames);
        let mut next = 0;
        for run in memory.runs() {
            assert_eq!(run.pages.start(), next, "runs cover every position");
            let first = run.pfn.unwrap().get();
            for position in run.pages.start()..run.pages.end() {
                assert_eq!(frames[position as usize], first + position - next, "{source} {run:?}");
            }
            next = run.pages.end();
            let joins = frames.get(next as usize) == Some(&(first + run.pages.len()));
            assert!(!joins, "{run:?} ends too early");
        }
        assert_eq!(next, frames.len() as u64);
    }
}

#[test]
fn pages_in_physical_order_make_the_longest_run_that_they_can() {
    let Some(_machine) = machine() else { return };
    let memory = Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(96)).unwrap();
    if memory.why_not_better().iter().any(|why| why.contains("were possible")) {
        println!("skipped: {:?}", memory.why_not_better());
        return;
    }
    let mut sorted = frames(memory.mapping().addr(), memory.len().get());
    sorted.sort_unstable();
    let best = sorted.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).max().unwrap();
    assert_eq!(memory.longest_run(), Pages::new(best as u64));
}

#[test]
fn the_pool_is_as_before_after_a_drop_and_after_a_failure() {
    let Some((machine, _turn)) = machine() else { return };
    machine.base_is_kept(|| {
        let memory = Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(16)).unwrap();
        drop(memory);
        let more_than_asked = Bytes::gib(1 << 10);
        let error = Contig::options()
            .source(Source::HUGETLB_2M)
            .require_run(more_than_asked)
            .build(Bytes::mib(4))
            .unwrap_err();
        assert!(matches!(error, Error::NotContiguous { .. }), "{error}");
    });
}

#[test]
fn a_forked_child_neither_gives_back_nor_unmaps() {
    if is_child() {
        let memory = Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(4)).unwrap();
        // SAFETY: this process runs one test, so no other thread holds a lock that the child needs.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let lost = memory.mapping().is_lost_by_fork() && memory.verify().is_err();
            drop(memory);
            // SAFETY: `_exit` runs no exit handlers of the parent.
            unsafe { libc::_exit(i32::from(!lost)) };
        }
        let mut status = 0;
        // SAFETY: `waitpid` writes a local.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0);
        memory.mapping().write(Bytes::ZERO, &[1]);
        assert_eq!(memory.verify().unwrap(), []);
        return;
    }
    if let Some(_machine) = machine() {
        assert!(passes(&mut child_of("contig::a_forked_child_neither_gives_back_nor_unmaps")));
    }
}

#[test]
fn nobody_gets_what_can_be_had_and_no_more_is_told() {
    use std::os::unix::process::CommandExt;
    if is_child() {
        assert_eq!(effective_user(), NOBODY);
        let memory = Contig::options().build(Bytes::mib(4)).unwrap();
        println!("{:?} {:?} {:?}", memory.source(), memory.proof(), memory.why_not_better());
        let grain = match memory.proof() {
            Proof::Within(pages) => pages,
            Proof::Frames => panic!("frames are hidden from nobody"),
        };
        let huge = memory.source() != Source::Plain;
        assert!(huge || grain == Pages::new(1));
        assert!(memory
            .runs()
            .iter()
            .all(|run| run.pfn.is_none() && run.pages.len() == grain.get()));
        assert_eq!(memory.longest_run(), grain);
        let told = memory.why_not_better().iter().any(|why| why.contains("root"));
        assert!(told || memory.held_by() != HeldBy::Nothing);
        assert_eq!(memory.verify().unwrap(), []);
        // Without frames, only a grain is proved.
        let error = Contig::options().require_run(Bytes::mib(4)).build(Bytes::mib(4)).unwrap_err();
        assert!(matches!(error, Error::NotContiguous { .. }), "{error}");
        return;
    }
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let mut child = child_of("contig::nobody_gets_what_can_be_had_and_no_more_is_told");
    child.uid(NOBODY).gid(NOBODY);
    match child.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}

#[test]
fn more_than_the_machine_has_is_refused_at_once() {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let kib: u64 = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let asked = Bytes::new(kib << 11);
    for source in [Source::Plain, Source::Thp] {
        match Contig::options().source(source).build(asked) {
            Err(Error::TooLarge { asked: told, available, .. }) => {
                assert!(told >= asked && available < asked);
            }
            Err(Error::CgroupLimit { limit, .. }) => assert!(limit < asked),
            Err(error) if lacks_thp(&error) => {}
            other => panic!("{other:?}"),
        }
    }
}
