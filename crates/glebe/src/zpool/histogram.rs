//! [`Histogram`]: how many objects of which length there are; [`Counters`] keep one while a pool
//! is used.
//!
//! Lengths are counted by place on the grid of the [`Rules`]. Bytes are those of the objects, not
//! of their slots. Cost: two additions a change, O(grid) a histogram. No lock: counters are
//! relaxed, and one of their histograms may lack a change that another thread is making; nothing
//! is lost, and the next one has it.

use super::size_class::{Rules, RulesError};
use crate::sync::{AtomicU64, Ordering};
use crate::units::Bytes;

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

/// A histogram that many threads change.
#[derive(Debug)]
pub struct Counters {
    rules: Rules,
    steps: Vec<Step>,
}

/// Both of one place on the grid: they change together. Modulo 2^64.
#[derive(Debug)]
struct Step {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// No objects, on the grid of `rules`.
    ///
    /// # Errors
    /// [`RulesError`]: a value is out of its limits.
    pub fn new(rules: &Rules) -> Result<Self, RulesError> {
        rules.check()?;
        let step = || Step { objects: AtomicU64::new(0), bytes: AtomicU64::new(0) };
        Ok(Self { rules: *rules, steps: (0..rules.grid_len()).map(|_| step()).collect() })
    }

    /// Counts an object of `len` bytes that came.
    ///
    /// # Panics
    /// If no object can have that length.
    pub fn came(&self, len: usize) {
        let step = self.step(len);
        step.objects.fetch_add(1, Ordering::Relaxed);
        step.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Counts an object of `len` bytes that went.
    ///
    /// # Panics
    /// If no object can have that length.
    pub fn went(&self, len: usize) {
        let step = self.step(len);
        step.objects.fetch_sub(1, Ordering::Relaxed);
        step.bytes.fetch_sub(len as u64, Ordering::Relaxed);
    }

    fn step(&self, len: usize) -> &Step {
        &self.steps[self.rules.grid_index(len).expect("1 byte to a page")]
    }

    /// What is counted now.
    #[must_use]
    pub fn histogram(&self) -> Histogram {
        // An object that goes may be seen before it came: less than none.
        let load = |n: &AtomicU64| (n.load(Ordering::Relaxed) as i64).max(0) as u64;
        let objects = self.steps.iter().map(|step| load(&step.objects)).collect();
        let stored = self.steps.iter().map(|step| load(&step.bytes)).sum();
        Histogram { rules: self.rules, objects, stored: Bytes::new(stored) }
    }

    /// The bytes that the counters themselves take.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new((size_of::<Self>() + size_of_val(self.steps.as_slice())) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageSize;

    fn rules() -> Rules {
        Rules::of_page(PageSize::new(4 << 10).unwrap())
    }

    #[test]
    fn what_came_and_did_not_go_is_counted() {
        let counters = Counters::new(&rules()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for len in 1..=4096 {
                        counters.came(len);
                        counters.came(len);
                        counters.went(len);
                    }
                });
            }
        });
        let mut expected = Histogram::new(&rules()).unwrap();
        (1..=4096).for_each(|len| expected.add(len, 4));
        assert_eq!(counters.histogram(), expected);
        assert_eq!(expected.stored(), Bytes::new(4 * 4096 * 4097 / 2));
        assert_eq!(expected.objects().iter().sum::<u64>(), 4 * 4096);
        assert_eq!((expected.objects()[0], expected.objects()[1]), (4 * 32, 4 * 16));
    }

    #[test]
    fn less_than_none_is_none() {
        let counters = Counters::new(&rules()).unwrap();
        counters.went(100);
        assert_eq!(counters.histogram(), Histogram::new(&rules()).unwrap());
        counters.came(100);
        assert_eq!(counters.histogram(), Histogram::new(&rules()).unwrap());
    }
}
