//! Tests growth with the machine: out of the bank of movable blocks, and back in a shortage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glebe::contig::{bank, Contig, Error, Source};
use glebe::internal::sys::processes::process::effective_user;
use glebe::units::Bytes;
use glebe_lease::wire::Flags;
use glebe_lease::Client;
use glebe_testing::process::is_child;
use glebe_testing::time::{slowed, wait_until};
use glebe_testing::turn::Turn;
use glebe_testing::Scratch;
use glebed::Settings;

use super::leases::{errno_of, ENOMEM};
use super::running::{brick, settings, wish, Running};
use super::served::{serve_of, Served};

const BLOCKS: &str = "/sys/devices/system/memory";
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a daemon with 4 bricks that may have 6 more.
fn growing(idle: Duration) -> Option<Running> {
    let grow = Bytes::new(6 * brick());
    // A short rest, so that the test of a shortage need not wait long.
    let rest = Duration::from_millis(500);
    Running::with_room(4, 10, Settings { grow, idle, rest, ..settings(0) })
}

/// Returns state and zone of each memory block.
fn blocks() -> BTreeMap<PathBuf, [String; 2]> {
    let dirs = fs::read_dir(BLOCKS).unwrap().map(|entry| entry.unwrap().path());
    let read = |dir: &Path, name| fs::read_to_string(dir.join(name)).unwrap_or_default();
    dirs.map(|dir| (dir.clone(), ["state", "valid_zones"].map(|name| read(&dir, name)))).collect()
}

/// The machine's bank, which is empty before and after the test.
struct Bank;

impl Bank {
    fn of_one_block() -> Option<Self> {
        if effective_user() != 0 || !Path::new(BLOCKS).exists() {
            println!("skipped: not root, or no memory blocks");
            return None;
        }
        let skipped = |why: &dyn std::fmt::Display| {
            println!("skipped: {why}");
            None
        };
        match bank::status() {
            Ok(status) if status.blocks.is_empty() => {}
            Ok(_) => return skipped(&"the machine has a bank, which is not the test's"),
            Err(error @ Error::NoBlocks { .. }) => return skipped(&error),
            Err(error) => panic!("{error}"),
        }
        match bank::add(Bytes::new(1), false) {
            Ok(change) if change.blocks.len() == 1 => Some(Self),
            Ok(change) => skipped(&format!("{:?}", change.notes)),
            Err(
                error @ (Error::BlocksShort { .. }
                | Error::BlocksStuck { .. }
                | Error::NoRoomToEvacuate { .. }
                | Error::TooMuchMovable { .. }
                | Error::NoBlocks { .. }),
            ) => skipped(&error),
            Err(error) => panic!("{error}"),
        }
    }

    fn drawn() -> Bytes {
        bank::status().unwrap().blocks.iter().fold(Bytes::ZERO, |sum, block| sum + block.drawn)
    }

    fn is_gone() -> bool {
        let _ = bank::drop(None);
        bank::status().is_ok_and(|status| status.blocks.is_empty())
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        // Other programs may use pages of the block for a while.
        let begin = Instant::now();
        while !Self::is_gone() && begin.elapsed() < slowed(PATIENCE) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_daemon_grows_out_of_the_bank_and_gives_back_to_it() {
    let _turn = Turn::alone(BLOCKS);
    let Some(running) = growing(Duration::from_millis(400)) else { return };
    let before = blocks();
    let Some(bank) = Bank::of_one_block() else { return };
    // Also after a failure, the daemon ends before the bank.
    let own = (running, bank);
    let running = &own.0;
    let client = running.client().patience(PATIENCE);
    let base = running.reserve.len();
    // Another program may have pages in the block; then the reserve takes other memory.
    let mut is_drawn = false;
    for _ in 0..5 {
        let lease = client.lease(wish(9, Flags::default())).unwrap();
        // The pool's own pages may be in the block, too.
        let is_of_blocks = running.reserve.certificate().unwrap().source == Source::Divided;
        is_drawn = is_of_blocks && Bank::drawn() == Bytes::new(5 * brick());
        lease.write(Bytes::new(9 * brick() - 1), &[1]).unwrap();
        let grown = format!("glebe_lease_grown_bytes {}\n", 5 * brick());
        assert!(client.stats().unwrap().contains(&grown));
        drop(lease);
        let is_back = || running.reserve.len() == base && Bank::drawn() == Bytes::ZERO;
        wait_until("the memory goes back to the bank", PATIENCE, is_back);
        if is_drawn {
            break;
        }
    }
    let status = bank::status().unwrap();
    assert_eq!(status.blocks.len(), 1, "the block is the bank's");
    if !is_drawn {
        let block = &status.blocks[0];
        let (size, page) = (block.free + block.used + block.drawn, glebe::page_size());
        let memory = Contig::options().source(Source::Blocks).build(Bytes::new(5 * brick()));
        let pfn = memory.ok().and_then(|memory| memory.runs()[0].pfn);
        let of = pfn.map(|pfn| pfn.get() / size.pages_down(page).get());
        assert_ne!(of, Some(block.number), "the daemon had none of the bank's memory");
        println!("skipped: others have pages in the bank's block: {status:?}");
    }
    drop(client.lease(wish(4, Flags::default())).unwrap());
    drop(own);
    let is_as_before = || blocks() == before;
    wait_until("the machine's blocks are as before", PATIENCE, is_as_before);
}

/// Returns the text of `/proc/meminfo` with other available memory.
fn with_available(meminfo: &str, available: Bytes) -> String {
    let line = |line: &str| match line.starts_with("MemAvailable:") {
        true => format!("MemAvailable: {} kB\n", available.get() >> 10),
        false => format!("{line}\n"),
    };
    meminfo.lines().map(line).collect()
}

fn stat(client: &Client, name: &str) -> u64 {
    let (stats, prefix) = (client.stats().unwrap(), format!("glebe_lease_{name} "));
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned));
    line.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
}

/// The daemon has a `/proc/meminfo` of its own, so nobody else is short of memory.
#[test]
fn a_shortage_takes_what_was_added_and_leaves_leases_alone() {
    if is_child() {
        return serve_of(|| growing(Duration::from_secs(3600)), || {});
    }
    if effective_user() != 0 {
        return println!("skipped: only root can mount, and add pages to the pool");
    }
    let test = "chain::a_shortage_takes_what_was_added_and_leaves_leases_alone";
    let scratch = Scratch::new("short");
    let meminfo = scratch.path().join("meminfo");
    let usual = fs::read_to_string("/proc/meminfo").unwrap();
    fs::write(&meminfo, &usual).unwrap();
    let mount = format!("mount --bind {} /proc/meminfo && exec \"$0\" \"$@\"", meminfo.display());
    let Some(served) = Served::start(test, &["unshare", "--mount", "sh", "-c", &mount]) else {
        return;
    };
    let client = served.client().patience(PATIENCE);
    let kept = client.lease(wish(3, Flags::default())).unwrap();
    kept.write(Bytes::ZERO, &[7; 100]).unwrap();
    let other = client.lease(wish(5, Flags::default())).unwrap();
    assert_eq!(stat(&client, "grown_bytes"), 4 * brick());
    other.write(Bytes::ZERO, &vec![1; other.len().as_usize()]).unwrap();

    // Leases keep their memory.
    fs::write(&meminfo, with_available(&usual, Bytes::mib(1))).unwrap();
    let refused = served.client().patience(Duration::from_secs(1)).lease(wish(1, Flags::default()));
    assert_eq!(errno_of(&refused.unwrap_err()), ENOMEM, "a daemon short of memory adds none");
    assert_eq!(stat(&client, "grown_bytes"), 4 * brick());
    let mut seen = [0; 100];
    other.read(Bytes::new(5 * brick() - 100), &mut seen).unwrap();
    assert_eq!(seen, [1; 100]);

    drop(other);
    let is_back = || stat(&client, "grown_bytes") == 0;
    wait_until("what was added goes back", PATIENCE, is_back);
    kept.read(Bytes::ZERO, &mut seen).unwrap();
    assert_eq!(seen, [7; 100]);

    fs::write(&meminfo, &usual).unwrap();
    let again = || client.lease(wish(4, Flags::default())).is_ok();
    wait_until("the daemon grows once there is memory", PATIENCE, again);
    drop((kept, client));
    served.ends_well();
}
