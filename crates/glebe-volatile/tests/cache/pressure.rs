//! Tests a cache with more bytes of addresses than its memory cgroup allows: values stay right, and
//! the kernel kills no process.

use std::path::Path;

use glebe_os::units::Bytes;
use glebe_testing::process::child_of;
use glebe_volatile::Engine;

use super::{build, caches, is_of, Words};
use glebe_testing::cgroup::{enter, Group};

const LIMIT: Bytes = Bytes::mib(48);
const GROUP: &str = "GLEBE_TEST_CACHE_CGROUP";
const TEST: &str = "cache::pressure::the_kernel_takes_entries_and_kills_nobody";
/// 64 KiB of words.
const LEN: usize = 8192;
/// 128 MiB of entries.
const KEYS: u64 = 2048;

fn in_group(group: &Path) {
    enter(group);
    for cache in caches(Bytes::mib(256), &Words::options()) {
        for key in (0..KEYS).chain(0..KEYS) {
            let entry = cache.get_or_build(key, LEN, build(key)).unwrap();
            assert!(entry.is_kept() && is_of(&entry, key), "{key}");
        }
        let stats = cache.stats();
        println!("{:?}\n{stats}", cache.engine());
        stats.check().unwrap();
        // No entry was evicted, so the kernel took the missing ones.
        assert!(stats.purges > 0 && stats.evicted == 0 && cache.len() as u64 == KEYS);
        let whole = (0..KEYS).filter(|key| cache.get(key).is_some()).count() as u64;
        assert!(whole * 4 > LIMIT.get() / (LEN as u64 * 8) && whole < KEYS, "{whole}");
        if cache.engine() == Engine::Tag {
            println!("{whole} of {KEYS} are whole in the end");
        }
    }
}

#[test]
fn the_kernel_takes_entries_and_kills_nobody() {
    if let Some(group) = std::env::var_os(GROUP) {
        return in_group(Path::new(&group));
    }
    let group = match Group::make(LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let output = child_of(TEST).env(GROUP, group.dir()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(group.kills(), 0);
    assert!(output.status.success(), "{said}");
}
