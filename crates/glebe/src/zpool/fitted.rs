//! [`Table::fitted`]: the classes that hold given objects in the least memory.
//!
//! A class of `n` objects, `k` of them in each zspage of `z` bytes, is expected to hold
//! `n / k` zspages and, of the last one, what is left to fill: `(k - 1) / 2` slots. Held besides
//! is what an object, a slot, a zspage and a class cost ([`Metadata`]). Few classes round lengths
//! up by much; many have many zspages that are not full; long zspages have short tails, but more
//! that is not full. A table is chosen by dynamic programming over the sizes that are in use:
//! the best classes up to a size are the best up to some smaller one, and one class for what
//! lies between. Between two classes' numbers of pages the same sum decides.
//!
//! Sums are in bytes, as `f64`: exact to far more than what an estimate is worth, and the same on
//! every machine, since nothing is reordered. Cost: O(sizes in use ^ 2 x kinds of zspage).

use super::histogram::Histogram;
use super::size_class::{Rules, SizeClass, Table};
use crate::units::{Bytes, Pages};

/// What is held beside the pages of zspages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// For each object: its handle's entry.
    pub object: Bytes,
    /// For each slot, used or not: its back pointer.
    pub slot: Bytes,
    /// For each zspage: its header.
    pub zspage: Bytes,
    /// For each class.
    pub class: Bytes,
}

/// What a table is expected to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Pages of zspages and metadata, in bytes.
    pub held: f64,
    /// Of that, bytes of the objects.
    pub stored: Bytes,
}

impl Estimate {
    /// What is held beyond what is stored, as a part of what is stored; zero where that is
    /// nothing.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        let stored = self.stored.get() as f64;
        if stored == 0.0 {
            return 0.0;
        }
        self.held / stored - 1.0
    }
}

/// What the zspages of one class hold, as a function of its objects.
#[derive(Clone, Copy, Debug)]
struct Cost {
    class: SizeClass,
    per_object: f64,
    /// Of the zspage that is not full, and of the class.
    fixed: f64,
}

impl Cost {
    fn of(class: SizeClass, rules: &Rules, metadata: &Metadata) -> Self {
        let objects = f64::from(class.objects);
        let slots = Bytes::new(metadata.slot.get() * u64::from(class.objects));
        let zspage = (class.pages.bytes(rules.page) + metadata.zspage + slots).get() as f64;
        let left = (objects - 1.0) / (2.0 * objects);
        Self {
            class,
            per_object: zspage / objects + metadata.object.get() as f64,
            fixed: zspage * left + metadata.class.get() as f64,
        }
    }

    fn held(&self, objects: u64) -> f64 {
        if objects == 0 {
            return 0.0;
        }
        self.per_object * objects as f64 + self.fixed
    }
}

/// The kinds of zspage that may be best for objects of up to `size` bytes: each one longer than
/// those before it, and cheaper an object.
fn kinds(size: Bytes, rules: &Rules, metadata: &Metadata) -> Vec<Cost> {
    let mut kinds: Vec<Cost> = Vec::new();
    for pages in 1..=rules.chain.get() {
        let class = SizeClass::of(size, Pages::new(pages), rules.page);
        let cost = Cost::of(class, rules, metadata);
        if kinds.last().is_none_or(|last| cost.per_object < last.per_object) {
            kinds.push(cost);
        }
    }
    kinds
}

/// The cheapest kind for `objects` objects; of equals the shortest.
fn cheapest(kinds: &[Cost], objects: u64) -> (f64, SizeClass) {
    let mut best = (f64::INFINITY, kinds[0].class);
    for kind in kinds {
        let held = kind.held(objects);
        if held < best.0 {
            best = (held, kind.class);
        }
    }
    best
}

impl Table {
    /// The classes that are expected to hold the objects of `histogram` in the least memory.
    /// Lengths that none of them has find a class too. `rules.merge` is not looked at.
    #[must_use]
    pub fn fitted(histogram: &Histogram, metadata: &Metadata) -> Self {
        let rules = histogram.rules();
        let last = rules.grid_len() - 1;
        let in_use = |&(index, &objects): &(usize, &u64)| objects > 0 || index == last;
        let sizes: Vec<(usize, u64)> =
            histogram.objects().iter().enumerate().filter(in_use).map(|(i, n)| (i, *n)).collect();

        // Of the first `to` sizes: the least that they hold, and where their last class begins.
        let mut best: Vec<(f64, usize, Option<SizeClass>)> = vec![(0.0, 0, None)];
        for to in 1..=sizes.len() {
            let kinds = kinds(rules.grid_size(sizes[to - 1].0), rules, metadata);
            let mut least = (f64::INFINITY, 0, None);
            let mut objects = 0;
            for from in (0..to).rev() {
                objects += sizes[from].1;
                let (held, class) = cheapest(&kinds, objects);
                if best[from].0 + held < least.0 {
                    least = (best[from].0 + held, from, Some(class));
                }
            }
            best.push(least);
        }

        let mut classes = Vec::new();
        let mut to = sizes.len();
        while let (_, from, Some(class)) = best[to] {
            classes.push(class);
            to = from;
        }
        classes.reverse();
        widen(&mut classes, rules);
        Self::of_classes(rules, classes)
    }

    /// What this table is expected to hold with the objects of `histogram`, which has the same
    /// grid.
    #[must_use]
    pub fn expected(&self, histogram: &Histogram, metadata: &Metadata) -> Estimate {
        let rules = histogram.rules();
        let mut objects = vec![0; self.classes().len()];
        for (index, n) in histogram.objects().iter().enumerate() {
            let class = self.class_of(rules.grid_size(index).as_usize());
            objects[class.expect("a grid ends with a page")] += n;
        }
        let costs = self.classes().iter().map(|class| Cost::of(*class, rules, metadata));
        let held = costs.zip(objects).map(|(cost, n)| cost.held(n)).sum();
        Estimate { held, stored: histogram.stored() }
    }
}

/// Makes the slots as large as zspages have room for, so that lengths that come later find less
/// to round up.
fn widen(classes: &mut [SizeClass], rules: &Rules) {
    for at in 0..classes.len() {
        let class = classes[at];
        let room = class.pages.bytes(rules.page).get() / u64::from(class.objects);
        let next = classes.get(at + 1).map_or(u64::MAX, |next| next.size.get() - 1);
        let room = room.min(rules.page.bytes().get()).min(next);
        // A size below the smallest class stays that.
        if room > rules.min.get() {
            let steps = (room - rules.min.get()) / rules.step.get();
            let size = if room == rules.page.bytes().get() {
                rules.page.bytes()
            } else {
                rules.grid_size(steps as usize)
            };
            classes[at].size = class.size.max(size);
        }
    }
}
