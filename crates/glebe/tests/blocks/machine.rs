//! Reads memory blocks without the library, and lets tests take turns.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use glebe::contig::{bank, Error, PoolLock};
use glebe_testing::time::slowed;

use glebe_testing::turn::{Turn, POOL};

const ROOT: &str = "/sys/devices/system/memory";
const RECORD: &str = "/run/glebe/blocks";

/// Longest wait until a block without an owner is back in its zone. Each call of the library tries
/// to put the block back, and fails while another program has pages in the block.
const PATIENCE: Duration = Duration::from_secs(30);

/// State and zones by block number.
pub type Blocks = BTreeMap<u64, (String, String)>;

/// Locks the memory blocks for this test alone and the hugetlb pool as shared. Then calls
/// [`wait_until_all_owned`].
pub fn turn() -> Option<[Option<Turn>; 2]> {
    turn_with(Turn::shared)
}

pub fn turn_at_pool() -> Option<[Option<Turn>; 2]> {
    turn_with(Turn::alone)
}

fn turn_with(pool: impl FnOnce(&str) -> Option<Turn>) -> Option<[Option<Turn>; 2]> {
    match bank::status() {
        Err(error @ Error::NoBlocks { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
        Ok(_) if !Path::new(POOL).exists() => {
            println!("skipped: no hugetlb pool of 2 MiB pages");
            None
        }
        Ok(_) => {
            let turn = [Turn::alone(ROOT), pool(POOL)];
            wait_until_all_owned();
            Some(turn)
        }
    }
}

/// Calls `bank::status`, which makes repairs, until each block on record has an owner, but at most
/// for `PATIENCE`.
pub fn wait_until_all_owned() {
    let begin = Instant::now();
    while record().contains("nobody") && begin.elapsed() < slowed(PATIENCE) {
        let notes = bank::status().map(|status| status.notes);
        println!("a block is nobody's after {:?}: {notes:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn blocks() -> Blocks {
    let read = |dir: &Path, name: &str| {
        fs::read_to_string(dir.join(name)).unwrap_or_default().trim().to_owned()
    };
    let mut blocks = Blocks::new();
    for entry in fs::read_dir(ROOT).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let number = name.strip_prefix("memory").and_then(|number| number.parse().ok());
        if let Some(number) = number {
            blocks.insert(number, (read(&dir, "state"), read(&dir, "valid_zones")));
        }
    }
    blocks
}

pub fn movable() -> Vec<u64> {
    let blocks = blocks();
    blocks.iter().filter(|(_, (_, zone))| zone == "Movable").map(|(number, _)| *number).collect()
}

pub fn block_size() -> u64 {
    let text = fs::read_to_string(Path::new(ROOT).join("block_size_bytes")).unwrap();
    u64::from_str_radix(text.trim(), 16).unwrap()
}

pub fn record() -> String {
    fs::read_to_string(RECORD).unwrap_or_default()
}

/// Counts the persistent pages under the pool's lock, which excludes temporary additions by others.
pub fn base() -> i128 {
    let _lock = PoolLock::acquire().unwrap();
    persistent()
}

pub fn persistent() -> i128 {
    let [all, surplus] = ["nr_hugepages", "surplus_hugepages"].map(|name| -> i128 {
        fs::read_to_string(Path::new(POOL).join(name)).unwrap().trim().parse().unwrap()
    });
    all - surplus
}

pub fn assert_as_before(before: &Blocks) {
    wait_until_all_owned();
    let now = blocks();
    for (number, was) in before {
        let is = now.get(number);
        assert_eq!(is, Some(was), "memory block {number}; on record: {}", record());
    }
}

/// Returns the frame of each page in a range of process `pid`; `u64::MAX` for an absent page.
pub fn frames(pid: u32, addr: usize, len: u64) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let page = glebe::page_size().bytes().get();
    let map = fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut bytes = vec![0; (len / page * 8) as usize];
    map.read_exact_at(&mut bytes, addr as u64 / page * 8).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.map(|word| if word >> 63 == 1 { word & ((1 << 55) - 1) } else { u64::MAX }).collect()
}

pub fn block_of(frame: u64) -> u64 {
    frame / (block_size() / glebe::page_size().bytes().get())
}
