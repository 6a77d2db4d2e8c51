//! Tests that files in use stay cached although a region marks memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};
use glebe_testing::time::is_long;

use glebe_testing::inside::{inside, is_inside, GROUP};

const LIMIT: Bytes = Bytes::mib(96);
const FILE: Bytes = Bytes::mib(48);
/// Exceeds the limit together with the file.
const MARKED: Bytes = Bytes::mib(64);
const BLOCK: Bytes = Bytes::mib(1);

fn sparse_file() -> File {
    let dirs = [PathBuf::from(env!("CARGO_MANIFEST_DIR")), std::env::temp_dir()];
    let name = format!(".glebe-reclaim-{}", std::process::id());
    let made = dirs.iter().find_map(|dir| {
        let path = dir.join(&name);
        let file = File::options().create_new(true).read(true).write(true).open(&path).ok()?;
        std::fs::remove_file(path).unwrap();
        Some(file)
    });
    let file = made.expect("a directory to write to");
    file.set_len(FILE.get()).unwrap();
    file
}

/// Returns how many file pages the kernel dropped and read again in this group.
fn refaults(group: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(group.join("memory.stat")).unwrap();
    let value = |line: &str| {
        let line = line.strip_prefix("total_").unwrap_or(line);
        line.strip_prefix("workingset_refault_file ")?.parse().ok()
    };
    text.lines().find_map(value)
}

#[test]
fn files_in_use_are_kept_and_marked_memory_is_what_fits_beside_them() {
    const TEST: &str =
        "reclaim::files::files_in_use_are_kept_and_marked_memory_is_what_fits_beside_them";
    inside(LIMIT, TEST, || {
        assert!(is_inside());
        let group = PathBuf::from(std::env::var_os(GROUP).unwrap());
        if refaults(&group).is_none() {
            println!("skipped: the kernel counts no refaults of a group");
            return;
        }
        let region = Arc::new(Region::new(MARKED).unwrap());
        let reclaimer = Reclaimer::new(Policy::default()).unwrap();
        reclaimer.add(&region).unwrap();
        reclaimer.start().unwrap();
        let (file, mut block) = (sparse_file(), vec![0; BLOCK.as_usize()]);
        let mut read = |times: u64, from: u64| {
            for nth in 0..times * FILE.get() / BLOCK.get() {
                let at = (from + nth) * BLOCK.get() % FILE.get();
                file.read_exact_at(&mut block, at).unwrap();
            }
        };
        read(3, 0);
        let before = refaults(&group);
        let bytes = vec![7; BLOCK.as_usize()];
        let rounds = if is_long() { 4 } else { 2 };
        for round in 0..rounds {
            for mib in 0..MARKED.get() / BLOCK.get() {
                let range = Bytes::mib(mib)..Bytes::mib(mib + 1);
                let _lost = region.unmark(range.clone()).unwrap();
                region.write(range.start, &bytes).unwrap();
                region.mark(range, Priority::NORMAL).unwrap();
                read(1, round + mib * 7);
            }
        }
        let stats = region.stats();
        // The region holds what the file, the margin and the program leave of the limit.
        let held = stats.resident.bytes(glebe::page_size());
        assert!(held > Bytes::mib(20) && held < LIMIT.saturating_sub(FILE), "{held}: {stats}");
        assert!(stats.dropped_by_cap > 0, "{stats}");
        let again = refaults(&group).unwrap() - before.unwrap();
        // Each round reads the file's 12288 pages 64 times.
        assert!(
            again < 31 * rounds,
            "{again} pages were dropped and read again: {}",
            reclaimer.stats()
        );
    });
}
