//! [`LinkLock`] is the lock of a cache's connection, [`Link`], in processes that may fork.
//!
//! A thread of the parent may have the lock, and is not in a forked child. A child therefore waits
//! at most 200 ms. Once one of its own threads has taken the lock, it waits as long as needed.

use std::time::{Duration, Instant};

use crate::client::Client;
use glebe_os::internal::sync::{lock, try_lock, MappedWord, Mutex, MutexGuard, Ordering};
use glebe_os::internal::sys::processes::fork::ForkGuard;

/// Longest wait of a forked child for a thread that it may not have.
const PATIENCE: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: Option<Client>,
    pub(crate) number: u64,
    /// When to ask the daemon again.
    pub(crate) pause: Option<Instant>,
}

impl Link {
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Debug)]
pub(crate) struct LinkLock {
    process: ForkGuard,
    /// The generation of the last child in which a thread took the lock.
    had_in: MappedWord,
    /// The generation of the last child that gave up: a lost thread of its parent has the lock.
    lost_in: MappedWord,
    link: Mutex<Link>,
}

impl LinkLock {
    pub(crate) fn new(link: Link) -> Self {
        let [had_in, lost_in] = [0, 0].map(MappedWord::new);
        Self { process: ForkGuard::new(), had_in, lost_in, link: Mutex::new(link) }
    }

    /// With `waits`, waits for other threads.
    pub(crate) fn get(&self, waits: bool) -> Option<MutexGuard<'_, Link>> {
        match self.process.is_child() {
            false if waits => Some(lock(&self.link)),
            false => try_lock(&self.link),
            true => self.get_in_child(waits),
        }
    }

    #[cold]
    fn get_in_child(&self, waits: bool) -> Option<MutexGuard<'_, Link>> {
        let (own, begin) = (ForkGuard::new().generation(), Instant::now());
        loop {
            if let Some(link) = try_lock(&self.link) {
                self.had_in.store(own, Ordering::Relaxed);
                return Some(link);
            }
            let has = |word: &MappedWord| word.load(Ordering::Relaxed) == own;
            if waits && has(&self.had_in) {
                return Some(lock(&self.link));
            }
            if !waits || has(&self.lost_in) {
                return None;
            }
            if begin.elapsed() >= PATIENCE {
                self.lost_in.store(own, Ordering::Relaxed);
                return None;
            }
            std::thread::sleep(STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_testing::stressed::{in_child, ChildEnd};
    use std::sync::mpsc::channel;

    fn free() -> LinkLock {
        LinkLock::new(Link { client: None, number: 0, pause: None })
    }

    #[test]
    fn a_child_waits_for_its_own_threads() {
        let link = free();
        let ended = in_child(|| {
            drop(link.get(true).unwrap());
            let (told, is_held) = channel();
            let link = &link;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _held = link.get(true).unwrap();
                    told.send(()).unwrap();
                    std::thread::sleep(PATIENCE * 3 / 2);
                });
                is_held.recv().unwrap();
                u8::from(link.get(true).is_some())
            })
        });
        assert_eq!(ended, ChildEnd::Exit(1));
    }

    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let link = free();
        let held = link.get(true).unwrap();
        let ended = in_child(|| {
            let begin = Instant::now();
            let is_had = (0..20).any(|_| link.get(true).is_some());
            u8::from(!is_had && begin.elapsed() < PATIENCE * 10)
        });
        assert_eq!(ended, ChildEnd::Exit(1));
        drop(held);
        // The child of a child that had the lock.
        let ended = in_child(|| {
            let held = link.get(true).unwrap();
            let ended = in_child(|| u8::from(link.get(true).is_none()));
            drop(held);
            u8::from(ended == ChildEnd::Exit(1) && link.get(true).is_some())
        });
        assert_eq!(ended, ChildEnd::Exit(1));
    }
}
