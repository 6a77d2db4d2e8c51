//! Atomics and waiting, from the standard library and the kernel or, under `--cfg loom`, from the
//! model checker. Nothing else in the crate names `std::sync::atomic`.

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

    use glebe::sys::futex;

    use super::FutexWord;

    /// What a thread sleeps where the kernel does not let it wait for a word.
    const INSTEAD: Duration = Duration::from_micros(100);

    /// Sleeps while `word` has the value `seen`, for `time` at most; it may end early.
    pub(crate) fn wait(word: &FutexWord, seen: u32, time: Option<Duration>) {
        if futex::wait(word, seen, time).is_err() {
            std::thread::sleep(time.unwrap_or(INSTEAD));
        }
    }

    /// Wakes all who wait for `word`.
    pub(crate) fn wake_all(word: &FutexWord) {
        futex::wake(word, u32::MAX);
    }
}
