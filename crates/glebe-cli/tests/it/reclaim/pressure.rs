//! Tests that the kernel kills no process while marked memory remains. Two processes in a memory
//! cgroup share a file, and one uses up memory at a known speed. The purger runs outside the group.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use glebe::units::Bytes;
use glebe::volatile::{Order, Priority, Shared};
use glebe_testing::memory::rise;
use glebe_testing::process::child_of;

use super::purging::Purging;
use super::{filled, lost, mib, Tmpfs, GRANULE};
use glebe_testing::cgroup::{enter, Group};

const LIMIT: Bytes = Bytes::mib(192);
const CACHE_MIB: u64 = 160;
/// Memory that the second process uses up, more than the limit leaves. A purger that wakes late
/// keeps up to five eighths of the limit free, 120 MiB, so even then 12 MiB of the cache stay.
const RISE: Bytes = Bytes::mib(60);
const A_SECOND: Bytes = Bytes::mib(100);
const ROLE: &str = "GLEBE_TEST_RECLAIM_GROUP";

fn fill(path: &std::path::Path) -> Shared {
    let made = Shared::options().granule(GRANULE).create_at(path, Bytes::mib(CACHE_MIB));
    let shared = filled(made);
    shared.mark(mib(0, CACHE_MIB), Priority::NORMAL, Order::Fifo).unwrap();
    shared
}

fn child(group: &Group, role: &str, path: &std::path::Path) -> Command {
    let mut command = child_of("reclaim::pressure::a_rise_is_met_before_the_kernel_kills");
    let dir = group.dir().to_str().unwrap();
    command.env(ROLE, format!("{role} {dir} {}", path.to_str().unwrap()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn a_rise_is_met_before_the_kernel_kills() {
    if let Ok(told) = std::env::var(ROLE) {
        let mut words = told.split(' ');
        let (role, group, path) = (words.next(), words.next().unwrap(), words.next().unwrap());
        enter(group.as_ref());
        if role == Some("fill") {
            let shared = fill(path.as_ref());
            println!("filled");
            let _ = std::io::stdin().read_line(&mut String::new());
            println!("lost {}", lost(&shared).get() >> 20);
        } else {
            let shared = Shared::options().open(path.as_ref()).unwrap();
            std::hint::black_box(rise(RISE.as_usize(), A_SECOND.get()));
            println!("risen");
            drop(shared);
        }
        std::process::exit(0);
    }
    let Some(dir) = Tmpfs::new() else { return };
    let group = match Group::make(LIMIT) {
        Ok(group) => group,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let path = dir.join("cache");
    let mut filler = child(&group, "fill", &path).spawn().unwrap();
    let mut lines = BufReader::new(filler.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("filled")), "it ended");
    // Starts the purger after the fill, so that the purger sees only the slower rise.
    let options = ["-v", "--wait", "--cgroup", group.dir().to_str().unwrap()];
    let mut purging = Purging::start(options.iter().copied().chain([path.to_str().unwrap()]));
    purging.says(&format!("cache: {CACHE_MIB} MiB in granules"));
    let rise = child(&group, "rise", &path).output().unwrap();
    assert_eq!(group.kills(), 0, "{:#?}", purging.listen(Duration::from_millis(100)));
    let has_risen = String::from_utf8_lossy(&rise.stdout).contains("risen");
    assert!(rise.status.success() && has_risen, "{rise:?}");
    let line = purging.says("cache: purged ");
    assert!(line.contains("of priority 4"), "{line}");
    drop(filler.stdin.take());
    let lost = lines.find_map(|line| line.strip_prefix("lost ")?.parse::<u64>().ok()).unwrap();
    assert!(filler.wait().unwrap().success());
    // At least the missing memory is purged, but not everything.
    let missing = CACHE_MIB + (RISE.get() >> 20) - (LIMIT.get() >> 20);
    println!("{lost} MiB were purged; {missing} MiB were missing");
    assert!((missing..CACHE_MIB).contains(&lost), "{lost} MiB, missing {missing}");
    purging.ends_well();
}
