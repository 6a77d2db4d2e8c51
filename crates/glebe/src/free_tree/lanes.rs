//! [`Lane`] and the loops over the lanes of one node.
//!
//! Owns nothing. A node holds its entries side by side, one array for each field, the used lanes
//! first. The loops look at every lane, used or not, and have no branch in them, so that the
//! compiler makes vector instructions of them; what they are to skip, the filling of unused lanes
//! makes them skip. O(fan-out) each.

use std::fmt::Debug;
use std::ops::{Add, Sub};

/// A position or a length, in as few bits as the span needs.
pub(super) trait Lane:
    Copy + Ord + Debug + Add<Output = Self> + Sub<Output = Self> + 'static
{
    const ZERO: Self;
    /// Above every start, so that an unused lane counts as after all others.
    const MAX: Self;

    /// The value, or [`Lane::MAX`] if it is larger.
    fn of(value: u64) -> Self;
    fn get(self) -> u64;
    /// What is missing to the next multiple of `mask + 1`.
    fn pad(self, mask: Self) -> Self;
    /// The difference, or 0 if it would be less.
    fn minus(self, other: Self) -> Self;
}

/// The bit of each lane: to add these up is less work than to shift.
const fn bits() -> [u32; 32] {
    let mut bits = [0; 32];
    let mut i = 0;
    while i < 32 {
        bits[i] = 1 << i;
        i += 1;
    }
    bits
}

const BIT: [u32; 32] = bits();

macro_rules! lane {
    ($int:ty) => {
        impl Lane for $int {
            const ZERO: Self = 0;
            const MAX: Self = <$int>::MAX;

            #[inline(always)]
            fn of(value: u64) -> Self {
                Self::try_from(value).unwrap_or(Self::MAX)
            }

            #[inline(always)]
            #[allow(clippy::useless_conversion)] // of one of the two
            fn get(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn pad(self, mask: Self) -> Self {
                self.wrapping_neg() & mask
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
        }
    };
}

lane!(u32);
lane!(u64);

/// A bit for each lane of which that is so.
#[allow(clippy::needless_range_loop)] // the form of which vector instructions are made
#[inline(always)]
fn where_so<const B: usize>(is: impl Fn(usize) -> bool) -> u32 {
    let mut found = 0;
    for i in 0..B {
        found |= BIT[i] & u32::from(is(i)).wrapping_neg();
    }
    found
}

/// A bit for each lane that holds `min` or more.
#[inline(always)]
pub(super) fn at_least<L: Lane, const B: usize>(lanes: &[L; B], min: L) -> u32 {
    where_so::<B>(|i| lanes[i] >= min)
}

/// A bit for each lane of which `len` has `min` from the first multiple of `mask + 1` on.
#[inline(always)]
pub(super) fn fits<L: Lane, const B: usize>(start: &[L; B], len: &[L; B], min: L, mask: L) -> u32 {
    where_so::<B>(|i| usable(start[i], len[i], mask) >= min)
}

/// What an extent has from its first multiple of `mask + 1` on; 0 if it has none.
///
/// Never more for a larger alignment, for a later start before the same end, or for an earlier end
/// after the same start.
#[inline(always)]
pub(super) fn usable<L: Lane>(start: L, len: L, mask: L) -> L {
    len.minus(start.pad(mask))
}

/// How many lanes are `at` or below, which must be less than [`Lane::MAX`]; lanes ascend.
#[inline(always)]
pub(super) fn rank<L: Lane, const B: usize>(lanes: &[L; B], at: L) -> usize {
    // A count of bits, which not every processor has an instruction for, is not needed.
    (!u64::from(where_so::<B>(|i| lanes[i] <= at))).trailing_zeros() as usize
}

/// The largest value.
#[inline(always)]
pub(super) fn largest<L: Lane, const B: usize>(lanes: &[L; B]) -> L {
    let mut max = *lanes;
    // By halves, since one after the other would wait for each other.
    let mut half = B / 2;
    while half > 0 {
        for i in 0..half {
            max[i] = max[i].max(max[i + half]);
        }
        half /= 2;
    }
    max[0]
}

/// The most that one of the extents has for an alignment.
#[inline(always)]
pub(super) fn most_usable<L: Lane, const B: usize>(start: &[L; B], len: &[L; B], mask: L) -> L {
    let mut all = *len;
    for i in 0..B {
        all[i] = usable(start[i], len[i], mask);
    }
    largest(&all)
}

/// Puts `value` at `lane`, before those that were there and after.
#[inline(always)]
pub(super) fn insert<T: Copy, const B: usize>(
    lanes: &mut [T; B],
    count: usize,
    lane: usize,
    value: T,
) {
    lanes.copy_within(lane..count, lane + 1);
    lanes[lane] = value;
}

/// Takes `lane` out and closes the gap.
#[inline(always)]
pub(super) fn remove<T: Copy, const B: usize>(
    lanes: &mut [T; B],
    count: usize,
    lane: usize,
    unused: T,
) {
    lanes.copy_within(lane + 1..count, lane);
    lanes[count - 1] = unused;
}

/// Two neighbours and how many lanes each uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) left: usize,
    pub(super) right: usize,
}

impl Counts {
    /// Moves lanes over the border until the left one uses `target`.
    pub(super) fn shift<T: Copy, const B: usize>(
        self,
        target: usize,
        left: &mut [T; B],
        right: &mut [T; B],
        unused: T,
    ) {
        if target > self.left {
            let moved = target - self.left;
            left[self.left..target].copy_from_slice(&right[..moved]);
            right.copy_within(moved..self.right, 0);
            right[self.right - moved..self.right].fill(unused);
        } else {
            let moved = self.left - target;
            right.copy_within(..self.right, moved);
            right[..moved].copy_from_slice(&left[target..self.left]);
            left[target..self.left].fill(unused);
        }
    }
}
