//! [`Lane`] is a number in a node; used lanes come first.
//!
//! The loops over lanes have no branch, so that the compiler vectorizes them. Unused lanes do not
//! change results.

use std::fmt::Debug;
use std::ops::{Add, Sub};

pub(super) trait Lane:
    Copy + Ord + Debug + Add<Output = Self> + Sub<Output = Self> + 'static
{
    const ZERO: Self;
    /// Larger than every start, so that unused lanes sort last.
    const MAX: Self;

    fn of(value: u64) -> Self;
    fn get(self) -> u64;
    /// Returns the distance to the next multiple of `mask + 1`; 0 at a multiple.
    fn pad(self, mask: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

/// Returns the bit of each lane, as a table that is cheaper than shifts.
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
            #[allow(clippy::useless_conversion)] // for one of the two types
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

#[allow(clippy::needless_range_loop)] // the compiler vectorizes this form
#[inline(always)]
fn where_so<const B: usize>(is: impl Fn(usize) -> bool) -> u32 {
    let mut found = 0;
    for i in 0..B {
        found |= BIT[i] & u32::from(is(i)).wrapping_neg();
    }
    found
}

#[inline(always)]
pub(super) fn at_least<L: Lane, const B: usize>(lanes: &[L; B], min: L) -> u32 {
    where_so::<B>(|i| lanes[i] >= min)
}

#[inline(always)]
pub(super) fn fits<L: Lane, const B: usize>(start: &[L; B], len: &[L; B], min: L, mask: L) -> u32 {
    where_so::<B>(|i| usable(start[i], len[i], mask) >= min)
}

/// Returns the length of an extent from its first multiple of `mask + 1` on; 0 without a multiple.
///
/// A larger alignment, a later start or an earlier end never gives a longer result.
#[inline(always)]
pub(super) fn usable<L: Lane>(start: L, len: L, mask: L) -> L {
    len.minus(start.pad(mask))
}

/// Returns the number of lanes whose value is at most `at`. `at` must be less than [`Lane::MAX`].
#[inline(always)]
pub(super) fn rank<L: Lane, const B: usize>(lanes: &[L; B], at: L) -> usize {
    // Lanes ascend, so counting trailing ones counts all set bits.
    (!u64::from(where_so::<B>(|i| lanes[i] <= at))).trailing_zeros() as usize
}

#[inline(always)]
pub(super) fn largest<L: Lane, const B: usize>(lanes: &[L; B]) -> L {
    let mut max = *lanes;
    // Halving shortens the chain of dependent steps.
    let mut half = B / 2;
    while half > 0 {
        for i in 0..half {
            max[i] = max[i].max(max[i + half]);
        }
        half /= 2;
    }
    max[0]
}

#[inline(always)]
pub(super) fn most_usable<L: Lane, const B: usize>(start: &[L; B], len: &[L; B], mask: L) -> L {
    let mut all = *len;
    for i in 0..B {
        all[i] = usable(start[i], len[i], mask);
    }
    largest(&all)
}

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

#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) left: usize,
    pub(super) right: usize,
}

impl Counts {
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
