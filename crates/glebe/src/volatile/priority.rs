//! [`Priority`]: the order in which glebe itself drops what is marked.

/// Which marked ranges glebe drops first, 0 to 7, the lowest first. The kernel knows of none and
/// purges in the order of marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Dropped before all others.
    pub const LOWEST: Self = Self(0);
    /// Where there is no reason for another.
    pub const NORMAL: Self = Self(4);
    /// Dropped after all others.
    pub const HIGHEST: Self = Self(7);

    /// A priority; `None` above [`Priority::HIGHEST`].
    #[must_use]
    pub const fn new(priority: u8) -> Option<Self> {
        if priority <= Self::HIGHEST.0 {
            Some(Self(priority))
        } else {
            None
        }
    }

    /// The bare number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How many there are.
    pub(crate) const COUNT: usize = Self::HIGHEST.0 as usize + 1;

    /// Its place among them, from 0.
    pub(crate) const fn place(self) -> usize {
        self.0 as usize
    }

    /// From the lowest to the highest.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (Self::LOWEST.0..=Self::HIGHEST.0).map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}
