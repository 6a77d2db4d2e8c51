//! Atomics and futex waits: real ones, or the model checker's (`--cfg loom`).

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub(crate) use {
    loom::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering},
    model::{wait, wake_all, FutexWord},
};
#[cfg(not(loom))]
pub(crate) use {
    real::{wait, wake_all},
    std::sync::atomic::AtomicU32 as FutexWord,
    std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicU8, Ordering},
};

#[cfg(not(loom))]
mod real {
    use std::time::Duration;

    use glebe::internal::sys::processes::futex;

    use super::FutexWord;

    /// Sleep without a `time` if the kernel refuses futex waits.
    const INSTEAD: Duration = Duration::from_micros(100);

    /// Sleeps while `word` equals `seen`, at most for `time`; may return early.
    pub(crate) fn wait(word: &FutexWord, seen: u32, time: Option<Duration>) {
        if futex::wait(word, seen, time).is_err() {
            std::thread::sleep(time.unwrap_or(INSTEAD));
        }
    }

    pub(crate) fn wake_all(word: &FutexWord) {
        futex::wake(word, u32::MAX);
    }
}
