//! Models the kernel's futex: compares and sleeps in one step.

use std::time::Duration;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct FutexWord {
    value: AtomicU32,
    sleepers: Mutex<()>,
    woken: Condvar,
}

impl FutexWord {
    pub(crate) fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), sleepers: Mutex::new(()), woken: Condvar::new() }
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.value.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.value.store(value, order);
    }

    pub(crate) fn compare_exchange(
        &self,
        seen: u32,
        value: u32,
        ok: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        self.value.compare_exchange(seen, value, ok, failed)
    }

    pub(crate) fn fetch_and(&self, mask: u32, order: Ordering) -> u32 {
        self.value.fetch_and(mask, order)
    }

    pub(crate) fn fetch_or(&self, mask: u32, order: Ordering) -> u32 {
        self.value.fetch_or(mask, order)
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.value.fetch_add(value, order)
    }
}

/// Models futex(2) without time-outs.
pub(crate) fn wait(word: &FutexWord, seen: u32, _time: Option<Duration>) {
    let sleepers = word.sleepers.lock().unwrap();
    if word.load(Ordering::SeqCst) == seen {
        drop(word.woken.wait(sleepers).unwrap());
    }
}

pub(crate) fn wake_all(word: &FutexWord) {
    let _sleepers = word.sleepers.lock().unwrap();
    word.woken.notify_all();
}
