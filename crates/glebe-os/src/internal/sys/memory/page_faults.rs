//! [`of_thread`] counts the page faults of the calling thread, also in system calls.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::error::OsError;
use crate::internal::sys::call::call;

#[inline]
pub fn of_thread() -> Result<u64, OsError> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure.
    let ask = || unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    call("getrusage", || "RUSAGE_THREAD".to_owned(), ask)?;
    // SAFETY: the structure holds only numbers, zero or written by the kernel.
    let usage = unsafe { usage.assume_init() };
    Ok(usage.ru_minflt.wrapping_add(usage.ru_majflt) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ptr;

    use crate::internal::sys::memory::mmap::{map, munmap, Backing};
    use crate::units::Bytes;

    #[test]
    fn a_touch_is_counted_and_no_touch_is_not() {
        // One equal pair is enough, because another test's fork may make a stack write fault.
        assert!((0..100).any(|_| of_thread().unwrap() == of_thread().unwrap()));
        let before = of_thread().unwrap();
        // The allocator might return a present page, so the test maps new memory.
        let (fresh, len) = (map(Bytes::mib(4), Backing::Ordinary).unwrap(), Bytes::mib(4));
        // SAFETY: mapped for this test.
        unsafe {
            assert_eq!(ptr::with_exposed_provenance::<u8>(fresh).read_volatile(), 0);
            munmap(fresh, len).unwrap();
        }
        assert!(of_thread().unwrap() > before);
    }
}
