//! Placeholder for other processors: [`super::Rseq::find`] fails.
#![allow(unsafe_code)]

use super::{AtomicU64, Fill, Guard, Outcome};

pub unsafe fn compare_exchange(_: isize, _: Guard<'_>, _: &AtomicU64, _: u64, _: u64) -> Outcome {
    Outcome::Refused
}

pub unsafe fn fill(_: isize, _: Guard<'_>, _: &Fill<'_>) -> Outcome {
    Outcome::Refused
}
