//! [`Classes`]: the alignments for which a free tree knows in advance what fits where.
//!
//! Owns nothing. A set of powers of two, one bit each.

use super::Error;

/// A set of alignments.
///
/// A request of such an alignment is found in O(log n) in whatever state the tree is. Of others,
/// the answer is the same, but a state can be made in which a search passes by many extents that
/// are long enough and lie badly. 1 is always in the set.
///
/// Each class costs one length for each child of an inner node: with all of them and 32-bit
/// positions, some 8 bytes an extent. They come by fours, so that another one may cost nothing. A
/// change also has to look at each class of which the changed extent has a multiple inside, which
/// is those up to its length and seldom more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    logs: u64,
}

impl Classes {
    /// All powers of two.
    pub const ALL: Self = Self { logs: u64::MAX };
    /// None but 1.
    pub const NONE: Self = Self { logs: 1 };

    /// The given ones, and 1.
    ///
    /// # Errors
    /// [`Error::BadAlign`] if one is not a power of two.
    pub fn of(alignments: &[u64]) -> Result<Self, Error> {
        let mut logs = 1;
        for &align in alignments {
            if !align.is_power_of_two() {
                return Err(Error::BadAlign { align });
            }
            logs |= align;
        }
        Ok(Self { logs })
    }

    /// A bit for the logarithm of each.
    pub(super) fn logs(self) -> u64 {
        self.logs
    }
}

impl Default for Classes {
    fn default() -> Self {
        Self::ALL
    }
}
