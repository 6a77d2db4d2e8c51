//! [`Class`]: what a part can give up, in the order in which it goes.

use std::fmt;

use crate::volatile::Priority;

/// What can be given up. Classes go in the order in which they stand here, each wholly before the
/// next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Marked volatile memory, the lowest priority first; within one the oldest of all parts.
    Volatile(Priority),
    /// What compaction of an object pool frees: no object goes.
    Waste,
    /// The oldest objects of a pool that may evict.
    Objects,
    /// What a [`Budget`](super::Budget) asks its owner to give up.
    Budgets,
    /// Memory of a reserve that first class does not hold.
    Reserve,
}

const PRIORITIES: usize = Priority::HIGHEST.get() as usize + 1;

impl Class {
    /// How many there are.
    pub const COUNT: usize = PRIORITIES + 4;

    /// All, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        let volatile = (0..=Priority::HIGHEST.get()).filter_map(Priority::new).map(Self::Volatile);
        volatile.chain([Self::Waste, Self::Objects, Self::Budgets, Self::Reserve])
    }

    /// Its place in the order, from 0.
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

    /// Whether it is volatile memory.
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
