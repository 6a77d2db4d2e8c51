//! References to an object outside of its table: calls and a reclaimer's looks hold them.
//!
//! The call that ends an object waits for them: afterwards the caller may reuse its memory. A
//! forked child gives up the references of threads that it lacks.
//!
//! # Safety
//! [`forget_others`] has the contract.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

/// A fraction of the time of a look.
const LOOK: Duration = Duration::from_micros(20);

/// Waits until nobody else has a reference.
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
/// belonged to a thread that stayed with the parent, or is never used or dropped here.
pub(crate) unsafe fn forget_others<T>(kept: &Arc<T>) {
    for _ in 1..Arc::strong_count(kept) {
        // SAFETY: the caller guarantees that nobody else gives this reference up; `kept` remains.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(kept)) };
    }
}
