//! The machine's memory blocks, read as an outsider would; the turn of who may touch them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use glebe::contig::{bank, Error};

const ROOT: &str = "/sys/devices/system/memory";
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const RECORD: &str = "/run/glebe/blocks";

/// Held by the test that runs, with a lock of this file: blocks are the whole machine's.
static TURN: Mutex<()> = Mutex::new(());
const LOCK: &str = "glebe-test-blocks.lock";
/// How long others may keep pages in a block that is to go back to its zone: then it stays movable,
/// is nobody's, and whatever call comes next tries again.
const PATIENCE: Duration = Duration::from_secs(30);

/// A test's turn, among the threads of this process and among processes.
pub struct Turn {
    _file: File,
    _thread: MutexGuard<'static, ()>,
}

impl Turn {
    fn take() -> Self {
        let thread = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let file = File::create(std::env::temp_dir().join(LOCK)).unwrap();
        // SAFETY: takes a descriptor that is open.
        let rc = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        Self { _file: file, _thread: thread }
    }
}

/// State and zones of every block.
pub type Blocks = BTreeMap<u64, (String, String)>;

/// The turn of a test, on a machine whose blocks this process may take off line.
pub fn turn() -> Option<Turn> {
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
            let turn = Turn::take();
            wait_until(|| !record().contains("nobody"));
            Some(turn)
        }
    }
}

/// Waits until something is so, with calls that mend what is left, and not for ever.
fn wait_until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() && begin.elapsed() < PATIENCE {
        let _ = bank::status();
        std::thread::sleep(Duration::from_millis(50));
        println!("others have pages in a block that is nobody's: {:?}", begin.elapsed());
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

/// The blocks in ZONE_MOVABLE.
pub fn movable() -> Vec<u64> {
    let blocks = blocks();
    blocks.iter().filter(|(_, (_, zone))| zone == "Movable").map(|(number, _)| *number).collect()
}

/// The length of a block in bytes.
pub fn block_size() -> u64 {
    let text = fs::read_to_string(Path::new(ROOT).join("block_size_bytes")).unwrap();
    u64::from_str_radix(text.trim(), 16).unwrap()
}

/// What is on record, in words; nothing where no block is.
pub fn record() -> String {
    fs::read_to_string(RECORD).unwrap_or_default()
}

/// Persistent pages of the pool.
pub fn persistent() -> i128 {
    let [all, surplus] = ["nr_hugepages", "surplus_hugepages"].map(|name| -> i128 {
        fs::read_to_string(Path::new(POOL).join(name)).unwrap().trim().parse().unwrap()
    });
    all - surplus
}

/// Asserts that all blocks are on line, in the zones where they were, or are again.
pub fn assert_as_before(before: &Blocks) {
    wait_until(|| !record().contains("nobody"));
    let now = blocks();
    for (number, was) in before {
        let is = now.get(number);
        assert_eq!(is, Some(was), "memory block {number}; on record: {}", record());
    }
}

/// Frames of 4 KiB pages, `u64::MAX` where none is, of process `pid`.
pub fn frames(pid: u32, addr: usize, len: u64) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let page = glebe::sys::page_size().bytes().get();
    let map = fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut bytes = vec![0; (len / page * 8) as usize];
    map.read_exact_at(&mut bytes, addr as u64 / page * 8).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.map(|word| if word >> 63 == 1 { word & ((1 << 55) - 1) } else { u64::MAX }).collect()
}

/// The block of a frame.
pub fn block_of(frame: u64) -> u64 {
    frame / (block_size() / glebe::sys::page_size().bytes().get())
}
