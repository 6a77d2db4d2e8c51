//! [`Table::fitted`] chooses the classes that hold given objects in the least memory.
//!
//! A class of `n` objects with `k` slots per zspage is expected to hold `n / k` zspages, plus
//! [`LEFT`] times `(k - 1) / 2` free slots.
//!
//! Dynamic programming finds the best table: the best classes up to a size are the best up to some
//! smaller size, plus one class. Cost: O(s x z x log s) for s sizes in use and z kinds of zspage.

use crate::sizes::table::{Rules, SizeClass, Table};
use glebe_os::units::{Bytes, Pages};

/// Bytes held besides pages, for each object (entry), slot (back pointer), zspage and class.
const OBJECT: f64 = 8.0;
const SLOT: f64 = 4.0;
const ZSPAGE: f64 = 40.0;
const CLASS: f64 = 640.0;
/// Ratio of a class's expected free slots to those of one randomly filled zspage, chosen on the
/// benchmark's trace.
const LEFT: f64 = 0.8;

#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    rules: Rules,
    objects: Vec<u64>,
}

impl Histogram {
    pub(crate) fn new(rules: &Rules) -> Self {
        Self { rules: *rules, objects: vec![0; rules.grid_len()] }
    }

    pub(crate) fn add(&mut self, len: usize, objects: u64) {
        let index = self.rules.grid_index(len).expect("1 byte to a page");
        self.objects[index] += objects;
    }
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    class: SizeClass,
    per_object: f64,
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

struct Goal<'a> {
    histogram: &'a Histogram,
    present: &'a [SizeClass],
    move_cost: f64,
}

/// Returns the kinds of zspage that may be best for objects of up to `size` bytes. The last kind is
/// the present class, without move costs.
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

#[derive(Clone, Copy, Debug)]
struct Best {
    objects: u64,
    held: f64,
    last: Option<(SizeClass, usize)>,
}

/// `Hull` has the indices of each [`Best`] on the lower convex hull of `held` over `objects`. Only
/// such a `Best` can hold least with one more class.
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

    /// Returns the index of the [`Best`] that holds least with one more class of `per_object` bytes
    /// per object.
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
                // No object has this length yet, but one may be inserted.
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
    /// Each byte that a change of class moves counts as `move_cost` held bytes.
    pub(crate) fn fitted(&self, histogram: &Histogram, move_cost: f64) -> Self {
        let goal = Goal { histogram, present: self.classes(), move_cost };
        Self::of_classes(&histogram.rules, goal.classes())
    }

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

fn widen(classes: &mut [SizeClass], rules: &Rules) {
    for at in 0..classes.len() {
        let class = classes[at];
        let room = class.pages.bytes(rules.page).get() / u64::from(class.objects);
        let next = classes.get(at + 1).map_or(u64::MAX, |next| next.size.get() - 1);
        let room = room.min(rules.page.bytes().get()).min(next);
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
