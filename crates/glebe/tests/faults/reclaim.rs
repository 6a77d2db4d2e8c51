//! [`live`] makes a reclaimer, adds a region, a pool and a reserve, and polls when memory is short.
//!
//! Whichever kernel call fails, a poll reports no more freed bytes than the parts can have lost.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use glebe::contig::{Contig, Source};
use glebe::internal::reclaimer_below;
use glebe::reclaim::{Part, Policy};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};
use glebe::zpool::{AtLimit, Codec, ObjectPool};

use super::Outcome;

const LIMIT: Bytes = Bytes::mib(64);

/// Writes files like the kernel's for a group whose memory is used up.
pub fn tree(root: &Path) -> io::Result<()> {
    let group = root.join("sys/fs/cgroup");
    fs::create_dir_all(&group)?;
    fs::create_dir_all(root.join("proc/self"))?;
    let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    fs::write(root.join("proc/self/mountinfo"), mount)?;
    fs::write(root.join("proc/self/cgroup"), "0::/\n")?;
    fs::write(root.join("proc/meminfo"), "MemTotal: 9 kB\nMemFree: 9 kB\n")?;
    fs::write(group.join("memory.max"), LIMIT.get().to_string())?;
    fs::write(group.join("memory.current"), LIMIT.get().to_string())?;
    Ok(())
}

pub fn live(root: &Path) -> Outcome {
    let region = Arc::new(Region::new(Bytes::mib(1))?);
    region.write(Bytes::ZERO, &[1; 1 << 16])?;
    region.mark(Bytes::ZERO..region.len(), Priority::NORMAL)?;
    let pool = ObjectPool::options().codec(Codec::None).at_limit(AtLimit::EvictOldest);
    let pool = Arc::new(pool.limit(Bytes::mib(4)).build()?);
    for nth in 0..200_u64 {
        pool.insert(
            &(nth << 20..(nth << 20) + 200).flat_map(u64::to_ne_bytes).collect::<Vec<_>>(),
        )?;
    }
    let plain = Contig::options().source(Source::Plain);
    let reserve = Reserve::options().room(Bytes::mib(4)).memory(plain).build(Bytes::mib(4))?;

    let policy = Policy::default().margin(Bytes::mib(8)).lead(std::time::Duration::ZERO);
    let reclaimer = reclaimer_below(root, policy)?;
    reclaimer.add(&region)?;
    reclaimer.add(&pool)?;
    reclaimer.add(Part::reserve(&reserve, Bytes::mib(2)))?;
    let (held, len) = (pool.held(), reserve.len().bytes(glebe::page_size()));
    let done = reclaimer.poll()?;
    let gone = held.saturating_sub(pool.held())
        + len.saturating_sub(reserve.len().bytes(glebe::page_size()));
    assert!(done.freed() <= gone + region.len(), "{done:?}, {gone} gone");
    reclaimer.start()?;
    drop(reclaimer);
    pool.stats().check()?;
    let _lost = region.unmark(Bytes::ZERO..region.len())?;
    region.stats().check()?;
    Ok(())
}
