//! [`Class`] orders the kinds of memory.

use std::fmt;

use crate::volatile::Priority;

/// A kind of memory that a program can give up. A reclaimer takes all of a class before any of the
/// next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Marked volatile memory, lowest priority first, then oldest first.
    Volatile(Priority),
    /// Memory that compaction of an object pool frees.
    Waste,
    /// The oldest objects of a pool that may evict.
    Objects,
    /// Memory that a [`Budget`](super::Budget) asks its owner to free.
    Budgets,
    /// Memory of a reserve that no first-class client holds.
    Reserve,
}

const PRIORITIES: usize = Priority::HIGHEST.get() as usize + 1;

impl Class {
    /// Number of classes.
    pub const COUNT: usize = PRIORITIES + 4;

    /// Returns all classes in order.
    pub fn all() -> impl Iterator<Item = Self> {
        let volatile = (0..=Priority::HIGHEST.get()).filter_map(Priority::new).map(Self::Volatile);
        volatile.chain([Self::Waste, Self::Objects, Self::Budgets, Self::Reserve])
    }

    /// Returns the position in the order.
    #[must_use]
    pub const fn place(self) -> usize {
        match self {
            Self::Volatile(priority) => priority.get() as usize,
            Self::Waste => PRIORITIES,
            Self::Objects => PRIORITIES + 1,
            Self::Budgets => PRIORITIES + 2,
            Self::Reserve => PRIORITIES + 3,
        }
    }

    /// Returns true for volatile memory.
    #[must_use]
    pub const fn is_volatile(self) -> bool {
        matches!(self, Self::Volatile(_))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volatile(priority) => write!(f, "volatile, priority {}", priority.get()),
            Self::Waste => f.write_str("waste of object pools"),
            Self::Objects => f.write_str("objects"),
            Self::Budgets => f.write_str("budgets"),
            Self::Reserve => f.write_str("reserves"),
        }
    }
}
