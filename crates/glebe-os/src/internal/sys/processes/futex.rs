//! [`wait`] sleeps until another thread changes a word and calls [`wake`].
//!
//! Futexes are private to the process. Calls never allocate, and may change `errno`. Source:
//! futex(2).
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::time::Duration;

use crate::internal::sync::FutexWord;
use crate::internal::sys::call::answer;
use crate::internal::sys::fault::point;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A wake or a signal came, or the word has another value.
    Over,
    TimedOut,
}

/// Sleeps while `word` is `expected`, at most for the relative `time`. The sleep may end early, so
/// callers check the word again. After an error callers must sleep by another means, because a
/// retry would spin.
pub fn wait(word: &FutexWord, expected: u32, time: Option<Duration>) -> io::Result<Wait> {
    let time = time.map(|time| libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time outlive the call.
    let waited = answer("futex", || unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, time)
    });
    match waited.map_err(|refused| (refused.raw_os_error(), refused)) {
        Ok(_) | Err((Some(libc::EAGAIN | libc::EINTR), _)) => Ok(Wait::Over),
        Err((Some(libc::ETIMEDOUT), _)) => Ok(Wait::TimedOut),
        Err((_, refused)) => Err(refused),
    }
}

/// Wakes at most `threads` threads. Returns no error, because a seccomp filter that forbids the
/// wake forbids [`wait`] too.
pub fn wake(word: &FutexWord, threads: u32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let threads = i32::try_from(threads).unwrap_or(i32::MAX);
    // An injected fault must not skip the call, because a waiting thread would sleep on.
    let _ = point("futex");
    // SAFETY: the kernel uses the address only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, threads) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sync::Ordering;
    use std::thread;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn a_wait_ends_by_its_time_or_at_once_where_the_word_is_another() {
        let word = FutexWord::new(7);
        let begin = Instant::now();
        let ended = loop {
            match wait(&word, 7, Some(SHORT)).unwrap() {
                Wait::Over => {}
                ended @ Wait::TimedOut => break ended,
            }
        };
        assert!(ended == Wait::TimedOut && begin.elapsed() >= SHORT);
        assert_eq!(wait(&word, 8, None).unwrap(), Wait::Over);
    }

    #[test]
    fn a_wake_ends_a_wait_without_a_time() {
        let word = FutexWord::new(0);
        thread::scope(|scope| {
            let waits = || {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, None).unwrap();
                }
            };
            let waiting = [scope.spawn(waits), scope.spawn(waits)];
            thread::sleep(SHORT);
            word.store(1, Ordering::Release);
            wake(&word, u32::MAX);
            waiting.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn the_longest_time_is_one_that_the_kernel_takes() {
        assert_eq!(wait(&FutexWord::new(0), 1, Some(Duration::MAX)).unwrap(), Wait::Over);
    }
}
