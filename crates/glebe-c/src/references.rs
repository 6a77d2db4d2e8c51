//! References to an object beside its table's: of calls, and of a reclaimer's looks under way.
//!
//! Who ends the object waits for them, since what it was made of may be the caller's from then on.
//! A child of a fork lacks the threads that had them, and gives them up.
//!
//! # Safety
//! Said at [`forget_others`].
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

/// A short part of the time that a look takes.
const LOOK: Duration = Duration::from_micros(20);

/// The object, once nobody else has a reference.
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
/// This is a child of a fork in which no other thread has run yet, and each of these references was
/// one of a thread that stayed with the parent, or is never used nor dropped here.
pub(crate) unsafe fn forget_others<T>(kept: &Arc<T>) {
    for _ in 1..Arc::strong_count(kept) {
        // SAFETY: a reference that nobody else gives up, as the caller says; `kept` is left.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(kept)) };
    }
}
