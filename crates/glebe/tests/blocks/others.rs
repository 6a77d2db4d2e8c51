//! Tests a block that another program takes off line, each policy for added blocks, and a busy
//! program in a memory cgroup.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glebe::units::Bytes;
use glebe::Contig;
use glebe_testing::process::is_child;
use glebe_testing::time::slowed;

use super::bank::Bank;
use super::busy::{be_busy, Busy};
use super::machine::{assert_as_before, block_of, block_size, blocks, frames, turn};
use super::{are_adjacent, assert_one_run, drawn};
use glebe_testing::cgroup::Group;
use glebe_testing::stressed::Stop;

const DRAWS: u32 = 12;
const CYCLES: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(10);

fn cycle(block: u64, stop: &AtomicBool, cycles: &AtomicBool) -> u32 {
    let state = PathBuf::from(format!("/sys/devices/system/memory/memory{block}/state"));
    let mut went = 0;
    while !stop.load(Ordering::Relaxed) {
        if fs::write(&state, "offline").is_ok() {
            went += 1;
            std::thread::yield_now();
            // The write fails while another process changes the block, which does not take long.
            while fs::write(&state, "online_kernel").is_err()
                && fs::read_to_string(&state).unwrap().trim() != "online"
            {
                std::thread::yield_now();
            }
        }
        cycles.store(went >= CYCLES, Ordering::Relaxed);
        std::thread::yield_now();
    }
    went
}

/// Returns true if the memory is still one run. The kernel may move pages while another program
/// takes the block off line; `verify` must report the move.
fn is_one_run_still(memory: &Contig) -> bool {
    let end = Instant::now() + slowed(PATIENCE);
    loop {
        let frames = frames(std::process::id(), memory.mapping().addr(), memory.len().get());
        if are_adjacent(&frames) {
            return true;
        }
        // A moving page has no frame.
        if !frames.contains(&u64::MAX) {
            assert!(!memory.verify().unwrap().is_empty(), "{:?}", memory.runs());
            return false;
        }
        assert!(Instant::now() < end, "a page is on its way for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_block_that_another_takes_off_line_meanwhile_is_nobodys_loss() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(first) = drawn(Bytes::new(1)) else { return };
    let block = block_of(first.runs()[0].pfn.unwrap().get());
    drop(first);
    let (stop, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut had, mut tried) = (0, 0);
    let went = std::thread::scope(|scope| {
        let ends = Stop(&stop);
        let other = scope.spawn(|| cycle(block, &stop, &enough));
        while tried < DRAWS || (!enough.load(Ordering::Relaxed) && tried < 20 * DRAWS) {
            tried += 1;
            had += u32::from(drawn(Bytes::new(1)).is_some_and(|memory| is_one_run_still(&memory)));
        }
        drop(ends);
        other.join().unwrap()
    });
    println!("{had} of {tried} draws while block {block} went off line {went} times beside");
    assert_as_before(&before);
    assert_eq!(super::machine::record(), "");
}

struct AutoOnline(String);

impl AutoOnline {
    const FILE: &str = "/sys/devices/system/memory/auto_online_blocks";

    fn read() -> Self {
        Self(fs::read_to_string(Self::FILE).unwrap().trim().to_owned())
    }

    fn set(&self, value: &str) {
        fs::write(Self::FILE, value).unwrap();
    }
}

impl Drop for AutoOnline {
    fn drop(&mut self) {
        self.set(&self.0);
    }
}

#[test]
fn what_the_machine_does_with_added_blocks_changes_nothing() {
    let Some(_turn) = turn() else { return };
    let (before, auto) = (blocks(), AutoOnline::read());
    for value in ["offline", "online", "online_kernel", "online_movable"] {
        auto.set(value);
        let Some(memory) = drawn(Bytes::new(block_size())) else { return };
        assert_one_run(&memory);
        drop(memory);
        assert_as_before(&before);
        assert_eq!(super::machine::record(), "", "{value}");
    }
}

#[test]
fn a_program_in_a_memory_cgroup_is_moved_within_its_limit() {
    const TEST: &str = "blocks::others::a_program_in_a_memory_cgroup_is_moved_within_its_limit";
    if is_child() {
        return be_busy();
    }
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(bank) = Bank::of_one_block() else { return };
    let len = block_size();
    // The limit has room for the child's words, a byte per word that counts its changes, and the
    // child's code. With less room, the kernel would drop and reread the code.
    let limit = Bytes::new(2 * len + 2 * len / 8) + Bytes::mib(100);
    let group = match Group::make(limit) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let busy = Busy::start_in(group.dir(), TEST, (2 * len) >> 20);
    let pages = bank.pages_of(&busy, 2 * len);
    let Some(memory) = bank.drawn() else { return };
    assert_one_run(&memory);
    assert_eq!(bank.pages_of(&busy, 2 * len), 0);
    let report = busy.stop();
    println!("{pages} pages of it were in the bank; {report:?}");
    assert!(pages > 0, "none of its pages was in the bank");
    assert_eq!((report.wrong, group.kills()), (0, 0), "{report:?}");
    drop(memory);
    drop(bank);
    assert_as_before(&before);
}
