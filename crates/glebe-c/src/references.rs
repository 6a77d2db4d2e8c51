//! [`alone`] waits until calls and reclaimers have dropped their references to an object.
//!
//! The call that ends an object waits, because its caller may then reuse the memory. A forked child
//! gives up the references of its parent's threads.
//!
//! # Safety
//! [`forget_others`] has the contract.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

const LOOK: Duration = Duration::from_micros(20);

/// Waits until `reference` is the only one, and returns the object.
pub(crate) fn alone<T>(mut reference: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(reference) {
            Ok(object) => return object,
            Err(shared) => reference = shared,
        }
        std::thread::sleep(LOOK);
    }
}

/// Gives up all references but `kept`.
///
/// # Safety
/// This process is a child of a fork, and no other thread has run in it. Each other reference
/// belongs to a thread that only the parent has, or is never used or dropped here.
pub(crate) unsafe fn forget_others<T>(kept: &Arc<T>) {
    for _ in 1..Arc::strong_count(kept) {
        // SAFETY: the caller guarantees that nobody else gives this reference up; `kept` remains.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(kept)) };
    }
}
