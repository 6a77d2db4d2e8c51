//! [`Priority`] of marked ranges.

/// The priority of a marked range, 0 to 7. glebe drops the lowest first; the kernel purges roughly
/// in the order of marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Dropped first.
    pub const LOWEST: Self = Self(0);
    /// The default.
    pub const NORMAL: Self = Self(4);
    /// Dropped last.
    pub const HIGHEST: Self = Self(7);

    /// Creates a priority; `None` above [`Priority::HIGHEST`].
    #[must_use]
    pub const fn new(priority: u8) -> Option<Self> {
        if priority <= Self::HIGHEST.0 {
            Some(Self(priority))
        } else {
            None
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The number of priorities.
    pub const COUNT: usize = Self::HIGHEST.0 as usize + 1;

    pub(crate) const fn place(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (Self::LOWEST.0..=Self::HIGHEST.0).map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}
