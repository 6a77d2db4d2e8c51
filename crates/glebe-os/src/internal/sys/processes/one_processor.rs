//! [`OneProcessor`] keeps the calling thread on its processor, or among a few processors.
//!
//! A processor allocates first from its list of freed pages, so only a thread that stays gets back
//! its freed pages. Source: sched_setaffinity(2), mm/page_alloc.c (`free_frozen_page_commit`).
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::{size_of, zeroed};

pub struct OneProcessor {
    before: libc::cpu_set_t,
    /// Not `Send`.
    _stays: PhantomData<*const ()>,
}

impl OneProcessor {
    pub fn stay() -> Option<Self> {
        // SAFETY: the call takes no argument.
        let here = unsafe { libc::sched_getcpu() };
        Self::among(&[u32::try_from(here).ok()?])
    }

    /// Keeps the thread on the allowed ones of `processors`.
    pub fn among(processors: &[u32]) -> Option<Self> {
        // SAFETY: a set is bits, so zeros are valid.
        let (mut before, mut here): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { zeroed() };
        // SAFETY: the kernel writes within the set.
        let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before) };
        let numbers = processors.iter().map(|number| *number as usize);
        for number in numbers.filter(|number| rc == 0 && *number < size_of_val(&before) * 8) {
            // SAFETY: the filter keeps `number` within the sets.
            unsafe {
                if libc::CPU_ISSET(number, &before) {
                    libc::CPU_SET(number, &mut here);
                }
            }
        }
        // The kernel refuses an empty set.
        set(&here).then_some(Self { before, _stays: PhantomData })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        set(&self.before);
    }
}

fn set(processors: &libc::cpu_set_t) -> bool {
    // SAFETY: the kernel only reads the set.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors() -> i32 {
        // SAFETY: the kernel writes within the set.
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
