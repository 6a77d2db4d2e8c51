//! Tests `glebe reclaim` as a user or a service manager runs it: files, signals, lines of the log.
//!
//! Most tests make memory short in a directory that looks like a memory cgroup of version 2.

mod bad_input;
mod events;
mod hostile;
mod once;
mod others;
mod pressure;
mod purging;

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use glebe::units::Bytes;
use glebe::volatile::{Order, Priority, Shared};

pub(crate) struct Tmpfs(pub PathBuf);

impl Tmpfs {
    /// Returns `None` and prints the reason if tmpfs is missing.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("glebe-test-{}-reclaim-{nth}", std::process::id());
        let dir = Path::new("/dev/shm").join(name);
        match fs::create_dir(&dir) {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                println!("skipped: no tmpfs: {}: {error}", dir.display());
                None
            }
        }
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file of `mib` MiB in granules of 64 KiB, present and unmarked.
    pub(crate) fn shared(&self, name: &str, mib: u64) -> Shared {
        filled(Shared::options().granule(GRANULE).create_at(&self.join(name), Bytes::mib(mib)))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the directory is ours");
    }
}

pub(crate) const GRANULE: Bytes = Bytes::new(64 << 10);

pub(crate) fn filled(made: Result<Shared, glebe::volatile::Error>) -> Shared {
    let shared = made.unwrap();
    let pin = shared.pin(Bytes::ZERO..shared.len()).unwrap();
    for at in (0..shared.len().get()).step_by(GRANULE.as_usize()) {
        pin.write(Bytes::new(at), &[1; GRANULE.get() as usize]).unwrap();
    }
    drop(pin);
    shared
}

pub(crate) fn mib(at: u64, mib: u64) -> Range<Bytes> {
    Bytes::mib(at)..Bytes::mib(at + mib)
}

pub(crate) fn mark(shared: &Shared, range: Range<Bytes>, priority: u8) {
    shared.mark(range, Priority::new(priority).unwrap(), Order::Fifo).unwrap();
}

pub(crate) fn lost(shared: &Shared) -> Bytes {
    let purged = shared.unmark(Bytes::ZERO..shared.len()).unwrap();
    purged.pages().bytes(glebe::page_size())
}

pub(crate) struct Fake(pub PathBuf);

impl Fake {
    pub(crate) fn new(dir: &Tmpfs) -> Self {
        let fake = Self(dir.join("group"));
        fs::create_dir(&fake.0).unwrap();
        fake.set("cgroup.controllers", "memory\n");
        fake.set("memory.max", "1073741824\n");
        fake.set("memory.stat", "inactive_file 0\nactive_file 0\n");
        fake.use_up(Bytes::ZERO);
        fake
    }

    fn set(&self, name: &str, text: &str) {
        // Readers never see half a file.
        let new = self.0.join("new");
        fs::write(&new, text).unwrap();
        let _ = fs::rename(&new, self.0.join(name));
    }

    /// Sets the usage in place, because readers keep the file open.
    pub(crate) fn use_up(&self, used: Bytes) {
        let path = self.0.join("memory.current");
        // A file that is cut to be written anew is empty for a moment.
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(format!("{:<20}\n", used.get()).as_bytes(), 0).unwrap();
    }

    pub(crate) fn lack(&self, missing: Bytes) {
        self.use_up(Bytes::gib(1) - Bytes::mib(64) + missing);
    }

    pub(crate) fn dir(&self) -> &str {
        self.0.to_str().unwrap()
    }
}
