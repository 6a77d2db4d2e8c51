//! Tests kill -9 at random moments. The next command brings the killed process's blocks back on
//! line, except blocks with pages of another program.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use glebe::contig::{bank, mend_blocks, Contig, Source};
use glebe::units::Bytes;
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{slowed, wait_until};

use super::bank::give_up;
use super::machine::{
    assert_as_before, base, blocks, persistent, record, turn, wait_until_all_owned,
};

const PATIENCE: Duration = Duration::from_secs(10);

struct Victim(Child);

impl Victim {
    fn start(test: &str) -> Self {
        let mut child = child_of(test);
        Self(child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// If `notes` tell of hugetlb pages in a block, waits until no block is left without an owner. The
/// pages may belong to another program, and keep the block until that program frees them.
fn wait_for_others(notes: &[String]) -> bool {
    let is_others = notes.iter().any(|note| note.contains("pages of hugetlb pools"));
    if is_others {
        wait_until_all_owned();
    }
    is_others
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_after_the_next_command() {
    const TEST: &str = "blocks::kills::a_kill_at_any_moment_leaves_nothing_after_the_next_command";
    if is_child() {
        loop {
            // Tries again after an error, because the machine may soon have suitable blocks.
            let _ = Contig::options().source(Source::Blocks).build(Bytes::mib(64));
        }
    }
    let Some(_turn) = turn() else { return };
    if !bank::status().unwrap().blocks.is_empty() {
        println!("skipped: the machine has a bank, which is not the test's");
        return;
    }
    let kills = std::env::var("GLEBE_TEST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let (before, pool) = (blocks(), base());
    let (mut mended, mut waits) = (0, 0);
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    println!("seed {random}");
    for kill in 0..kills {
        let victim = Victim::start(TEST);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_micros(random % 150_000));
        drop(victim);
        let mut notes = Vec::new();
        // A program that reads the victim's memory maps keeps its claim for a moment.
        wait_until(&format!("kill {kill} leaves nothing on record"), PATIENCE, || {
            notes.append(&mut mend_blocks(slowed(PATIENCE)).unwrap());
            waits += u64::from(wait_for_others(&notes));
            record().is_empty()
        });
        mended += u64::from(!notes.is_empty());
        assert_as_before(&before);
        // The kernel frees surplus pages shortly after a process has died.
        wait_until("the pool is as before", PATIENCE, || persistent() == pool);
    }
    println!("{kills} kills, {mended} of them left something to mend, {waits} after a wait");
}

#[test]
fn a_kill_of_one_that_adds_to_the_bank_leaves_a_bank_or_nothing() {
    const TEST: &str =
        "blocks::kills::a_kill_of_one_that_adds_to_the_bank_leaves_a_bank_or_nothing";
    if is_child() {
        loop {
            let _ = bank::add(Bytes::mib(256), false);
            let _ = bank::drop(None);
        }
    }
    let Some(_turn) = turn() else { return };
    if !bank::status().unwrap().blocks.is_empty() {
        println!("skipped: the machine has a bank, which is not the test's");
        return;
    }
    let before = blocks();
    for kill in 0..5 {
        let victim = Victim::start(TEST);
        thread::sleep(Duration::from_millis(20 + 37 * kill));
        drop(victim);
        wait_for_others(&mend_blocks(slowed(PATIENCE)).unwrap());
        assert!(!record().contains("nobody"), "kill {kill}: {}", record());
        let bank: Vec<u64> = bank::status().unwrap().blocks.iter().map(|b| b.number).collect();
        for (number, (state, zone)) in blocks() {
            // The machine may have blocks off line.
            assert_eq!(state, before[&number].0, "memory block {number}");
            assert_eq!(zone == "Movable", bank.contains(&number), "memory block {number}");
        }
        give_up();
        assert_as_before(&before);
    }
}
