//! [`Histogram`]: how many objects of which length there are.
//!
//! Lengths are counted by place on the grid of the [`Rules`]. Bytes are those of the objects, not
//! of their slots. Cost: an addition a length, O(grid) a histogram. No lock.

use crate::units::Bytes;
use crate::zpool::sizes::table::{Rules, RulesError};

/// Objects of one length that are counted: more than any machine holds, and so few that no sum over
/// all lengths overflows.
const OBJECTS_MAX: u64 = 1 << 48;

/// Objects by length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    rules: Rules,
    /// By place on the grid.
    objects: Vec<u64>,
    stored: Bytes,
}

impl Histogram {
    /// No objects, on the grid of `rules`.
    ///
    /// # Errors
    /// [`RulesError`]: a value is out of its limits.
    pub fn new(rules: &Rules) -> Result<Self, RulesError> {
        rules.check()?;
        Ok(Self { rules: *rules, objects: vec![0; rules.grid_len()], stored: Bytes::ZERO })
    }

    /// Adds `objects` of `len` bytes each. It counts no more than 2^48 of a length.
    ///
    /// # Panics
    /// If no object can have that length: if it is zero or longer than a page.
    pub fn add(&mut self, len: usize, objects: u64) {
        let index = self.rules.grid_index(len).expect("1 byte to a page");
        let more = objects.min(OBJECTS_MAX.saturating_sub(self.objects[index]));
        self.objects[index] += more;
        let bytes = (len as u64).saturating_mul(more);
        self.stored = Bytes::new(self.stored.get().saturating_add(bytes));
    }

    /// Objects, by place on the grid.
    pub(super) fn objects(&self) -> &[u64] {
        &self.objects
    }

    /// What the grid was made by.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The bytes of all objects.
    #[must_use]
    pub const fn stored(&self) -> Bytes {
        self.stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageSize;

    #[test]
    fn lengths_are_counted_by_their_place_on_the_grid() {
        let rules = Rules::of_page(PageSize::new(4 << 10).unwrap());
        let mut all = Histogram::new(&rules).unwrap();
        (1..=4096).for_each(|len| all.add(len, 4));
        assert_eq!(all.stored(), Bytes::new(4 * 4096 * 4097 / 2));
        assert_eq!(all.objects().iter().sum::<u64>(), 4 * 4096);
        assert_eq!((all.objects()[0], all.objects()[1]), (4 * 32, 4 * 16));
    }
}
