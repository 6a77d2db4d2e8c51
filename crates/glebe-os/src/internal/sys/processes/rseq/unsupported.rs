//! Placeholder for other processors: [`super::Rseq::find`] fails.
#![allow(unsafe_code)]

use super::{AtomicU64, Fill, Guard, Outcome};

/// # Safety
/// None: no `Rseq` exists here.
pub unsafe fn compare_exchange(_: isize, _: Guard<'_>, _: &AtomicU64, _: u64, _: u64) -> Outcome {
    Outcome::Refused
}

/// # Safety
/// None: no `Rseq` exists here.
pub unsafe fn fill(_: isize, _: Guard<'_>, _: &Fill<'_>) -> Outcome {
    Outcome::Refused
}
