//! What the benchmarks that are not yet written for [`Report`] and [`crate::turns`] call.

use std::time::Duration;

pub(crate) use crate::report::Report as Samples;
use crate::turns;
pub(crate) use crate::turns::{by_round, median, NO_END};

pub(crate) fn rounds<E>(
    what: &str,
    (count, at_most): (u64, Duration),
    round: impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    turns::rounds(what, count, at_most).try_for_each(round)
}

pub(crate) fn in_turn<T: Copy>(rounds: usize, all: &[T]) -> impl Iterator<Item = (u64, T)> + '_ {
    turns::turns("threads", rounds as u64, all)
}
