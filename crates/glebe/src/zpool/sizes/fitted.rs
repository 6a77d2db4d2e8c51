//! [`Table::fitted`]: the classes that hold given objects in the least memory.
//!
//! A class of `n` objects, `k` of them in each zspage of `z` bytes, is expected to hold
//! `n / k` zspages and, of the last one, a part of what is left to fill, `(k - 1) / 2` slots. Held
//! besides is what an object, a slot, a zspage and a class cost. Few classes round lengths up by
//! much; many have many zspages that are not full; long zspages have short tails, but more that is
//! not full. A table is chosen by dynamic programming over the sizes that are in use: the best
//! classes up to a size are the best up to some smaller one, and one class for what lies between.
//!
//! Sums are in bytes, as `f64`: exact to far more than what an estimate is worth, and the same on
//! every machine, since nothing is reordered. Cost: O(n x k x log n) for n sizes in use
//! and k kinds of zspage, since a class's cost is linear in its objects.

use crate::units::{Bytes, Pages};
use crate::zpool::sizes::table::{Rules, SizeClass, Table};

/// Bytes held beside the pages of zspages: for each object, its entry; for each slot, its back
/// pointer; for each zspage, its header and block; for each class.
const OBJECT: f64 = 8.0;
const SLOT: f64 = 4.0;
const ZSPAGE: f64 = 40.0;
const CLASS: f64 = 640.0;
/// Of the zspage that a class has not filled, so much is expected to be free, of what would be if
/// it were used to a random part, as held least on the benchmark's trace.
const LEFT: f64 = 0.8;

/// Objects by length.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    rules: Rules,
    /// By place on the grid.
    objects: Vec<u64>,
}

impl Histogram {
    /// No objects, on the grid of `rules`, which make a table.
    pub(crate) fn new(rules: &Rules) -> Self {
        Self { rules: *rules, objects: vec![0; rules.grid_len()] }
    }

    /// Adds `objects` of `len` bytes each, 1 to a page.
    pub(crate) fn add(&mut self, len: usize, objects: u64) {
        let index = self.rules.grid_index(len).expect("1 byte to a page");
        self.objects[index] += objects;
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
    fn of(class: SizeClass, rules: &Rules) -> Self {
        let objects = f64::from(class.objects);
        let pages = class.pages.bytes(rules.page).get() as f64;
        let zspage = pages + ZSPAGE + SLOT * objects;
        let left = (objects - 1.0) / (2.0 * objects) * LEFT;
        let (per_object, fixed) = (zspage / objects + OBJECT, zspage * left + CLASS);
        Self { class, per_object, fixed }
    }

    fn held(&self, objects: u64) -> f64 {
        if objects == 0 {
            return 0.0;
        }
        self.per_object * objects as f64 + self.fixed
    }
}

/// What classes are chosen for.
struct Goal<'a> {
    histogram: &'a Histogram,
    /// Classes whose objects need not move.
    present: &'a [SizeClass],
    /// What a moved byte costs, in bytes held.
    move_cost: f64,
}

/// The kinds of zspage that may be best for objects of up to `size` bytes: each one longer than
/// those before it, and cheaper an object; then the one that they are in.
fn kinds(size: Bytes, goal: &Goal) -> Vec<Cost> {
    let rules = &goal.histogram.rules;
    let mut kinds: Vec<Cost> = Vec::new();
    for pages in 1..=rules.chain.get() {
        let class = SizeClass::of(size, Pages::new(pages), rules.page);
        let mut cost = Cost::of(class, rules);
        if !goal.present.iter().any(|of| of.same_zspages(&class)) {
            cost.per_object += goal.move_cost * size.get() as f64;
        }
        if kinds.last().is_none_or(|last| cost.per_object < last.per_object) {
            kinds.push(cost);
        }
    }
    if let Some(stay) = goal.present.iter().find(|class| class.size >= size) {
        kinds.push(Cost::of(SizeClass { size, ..*stay }, rules));
    }
    kinds
}

/// The best classes for the smallest sizes in use: one of the sums that are built on.
#[derive(Clone, Copy, Debug)]
struct Best {
    /// Objects of these sizes.
    objects: u64,
    held: f64,
    /// The last class, and how many sizes are below it.
    last: Option<(SizeClass, usize)>,
}

/// Those that can be the best to put one more class on, for some cost of its objects: the lower
/// convex hull of what is held over objects, both of which ascend.
#[derive(Debug, Default)]
struct Hull(Vec<usize>);

impl Hull {
    fn push(&mut self, bests: &[Best], index: usize) {
        while let [.., before, last] = self.0[..] {
            if slope(&bests[before], &bests[last]) < slope(&bests[last], &bests[index]) {
                break;
            }
            self.0.pop();
        }
        self.0.push(index);
    }

    /// The best below a class of all objects above, at `per_object` each.
    fn least(&self, bests: &[Best], per_object: f64) -> usize {
        let falls = |two: &[usize]| slope(&bests[two[0]], &bests[two[1]]) < per_object;
        let (mut low, mut high) = (0, self.0.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            if falls(&self.0[middle..middle + 2]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.0[low]
    }
}

fn slope(from: &Best, to: &Best) -> f64 {
    (to.held - from.held) / (to.objects - from.objects) as f64
}

impl Goal<'_> {
    fn classes(&self) -> Vec<SizeClass> {
        let rules = &self.histogram.rules;
        let last = rules.grid_len() - 1;
        let mut bests = vec![Best { objects: 0, held: 0.0, last: None }];
        let mut hull = Hull::default();
        for (index, &more) in self.histogram.objects.iter().enumerate() {
            let below = bests.len() - 1;
            let size = rules.grid_size(index);
            if more > 0 {
                hull.push(&bests, below);
                let objects = bests[below].objects + more;
                bests.push(self.best(&bests, &hull, size, objects));
            } else if index == last {
                // Nothing is this long, but something may come.
                let class = SizeClass::of(size, Pages::new(1), rules.page);
                bests.push(Best { last: Some((class, below)), ..bests[below] });
            }
        }
        let mut classes = Vec::new();
        let mut at = bests.len() - 1;
        while let Some((class, below)) = bests[at].last {
            classes.push(class);
            at = below;
        }
        classes.reverse();
        widen(&mut classes, rules);
        classes
    }

    /// The best classes for `objects` objects of up to `size` bytes.
    fn best(&self, bests: &[Best], hull: &Hull, size: Bytes, objects: u64) -> Best {
        let mut least = Best { objects, held: f64::INFINITY, last: None };
        for kind in kinds(size, self) {
            let below = hull.least(bests, kind.per_object);
            let held = bests[below].held + kind.held(objects - bests[below].objects);
            if held < least.held {
                least = Best { objects, held, last: Some((kind.class, below)) };
            }
        }
        least
    }
}

impl Table {
    /// The classes that are expected to hold the objects of `histogram` in the least memory.
    /// Classes of this table are kept where that costs less than to move their objects:
    /// `move_cost` bytes held for each byte moved. Lengths that no object has find a class too.
    pub(crate) fn fitted(&self, histogram: &Histogram, move_cost: f64) -> Self {
        let goal = Goal { histogram, present: self.classes(), move_cost };
        Self::of_classes(&histogram.rules, goal.classes())
    }

    /// The bytes that this table is expected to hold with the objects of `histogram`.
    pub(crate) fn expected(&self, histogram: &Histogram) -> f64 {
        let rules = &histogram.rules;
        let mut objects = vec![0; self.classes().len()];
        for (index, n) in histogram.objects.iter().enumerate() {
            let class = self.class_of(rules.grid_size(index).as_usize());
            objects[class.expect("a grid ends with a page")] += n;
        }
        let costs = self.classes().iter().map(|class| Cost::of(*class, rules));
        costs.zip(objects).map(|(cost, n)| cost.held(n)).sum()
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

#[cfg(test)]
mod tests;
