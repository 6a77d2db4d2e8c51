//! [`OneProcessor`]: the calling thread stays on the processor that it is on, or among a few.
//!
//! What a processor frees goes to a list of its own first, and comes back first to the same
//! processor: only a thread that stays gets the pages again that it gave back. New pages come from
//! the node of the processor first. Threads that this one starts stay as it does. Source:
//! sched_setaffinity(2), mm/page_alloc.c (`free_frozen_page_commit`).
//!
//! # Safety
//! Calls change the calling thread alone, and read and write sets of bits within their length.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::{size_of, zeroed};

/// Keeps the calling thread where it is until it is dropped.
pub(crate) struct OneProcessor {
    before: libc::cpu_set_t,
    /// It is of the thread that made it.
    _stays: PhantomData<*const ()>,
}

impl OneProcessor {
    /// `None` where the kernel refuses, or has more processors than a set of the C library holds.
    pub fn stay() -> Option<Self> {
        // SAFETY: takes nothing.
        let here = unsafe { libc::sched_getcpu() };
        Self::among(&[u32::try_from(here).ok()?])
    }

    /// The same on those of `processors` that the thread may use; `None` if it may use none.
    pub fn among(processors: &[u32]) -> Option<Self> {
        // SAFETY: bits, which zeros are.
        let (mut before, mut here): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { zeroed() };
        // SAFETY: writes within the set's length.
        let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before) };
        let numbers = processors.iter().map(|number| *number as usize);
        for number in numbers.filter(|number| rc == 0 && *number < size_of_val(&before) * 8) {
            // SAFETY: within the sets, as was looked at.
            unsafe {
                if libc::CPU_ISSET(number, &before) {
                    libc::CPU_SET(number, &mut here);
                }
            }
        }
        // The kernel refuses a set without a processor.
        set(&here).then_some(Self { before, _stays: PhantomData })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        set(&self.before);
    }
}

fn set(processors: &libc::cpu_set_t) -> bool {
    // SAFETY: reads the set; changes the calling thread alone.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors() -> i32 {
        // SAFETY: as above.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
            libc::CPU_COUNT(&set)
        }
    }

    #[test]
    fn a_thread_stays_until_it_may_go() {
        let all = processors();
        let stays = OneProcessor::stay().expect("a small machine");
        assert_eq!(processors(), 1);
        drop(stays);
        assert_eq!(processors(), all);
        let some: Vec<u32> = (0..1 << 10).collect();
        let stays = OneProcessor::among(&some).expect("a small machine");
        assert_eq!(processors(), all);
        drop(stays);
        assert!(OneProcessor::among(&[]).is_none() && OneProcessor::among(&[u32::MAX]).is_none());
    }
}
