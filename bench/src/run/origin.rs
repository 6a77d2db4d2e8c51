//! [`Origin`]: where a started program's huge pages come from.

use crate::report::GLEBE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Leases, with an empty pool.
    Glebe,
    /// Pages that the pool has before the start.
    Standing,
    /// Pages that the pool gets first; the time counts.
    Raised,
    /// No pages of the pool.
    Without,
}

pub(super) const ALL: [Origin; 4] =
    [Origin::Glebe, Origin::Standing, Origin::Raised, Origin::Without];

impl Origin {
    /// `without` names the row without pages of the pool.
    pub(super) fn name(self, without: &'static str) -> &'static str {
        match self {
            Self::Glebe => GLEBE,
            Self::Standing => STANDING,
            Self::Raised => "raised pool",
            Self::Without => without,
        }
    }
}

pub(super) const STANDING: &str = "standing pool";
