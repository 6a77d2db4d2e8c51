//! What is left over of a class goes to larger ones, while a pool becomes smaller.
//!
//! Each class has a zspage that is not full, and so do many classes of few objects each hold
//! much that nobody uses. The objects of the emptiest zspage of a compacted class are moved to
//! free slots of the next larger classes, if all of them find one there that is not much larger.
//! So nearly all classes end with a full zspage, at the cost of what some objects are rounded up.
//!
//! It is done by whoever removes, one class at a time, from the smallest lengths up: a *round*,
//! which begins when the pages in use have become a share fewer since the last. A pool that stays
//! as large, or grows, is left alone. Locks: two classes at a time, the lower number first. Cost:
//! a few loads a remove; of a round, for each class once the objects of a zspage at most.

use super::class::Work;
use super::entry::Place;
use super::objects::Objects;
use super::pool::Pool;
use crate::sync::{AtomicU64, Ordering};

/// A round begins when of so many pages in use one has gone.
const PAGES_PER_ROUND: u64 = 256;
/// And not before so many have.
const ROUND_PAGES_MIN: u64 = 16;
/// Pages that came, over those, and the next round is later.
const ROUNDS_KEPT: u64 = 2;
/// Of so many bytes of a slot another may be longer by one.
const SIZE_PER_LONGER: u32 = 24;
/// Larger classes that are looked at.
const LARGER_MAX: usize = 8;
/// Bytes that are moved of a class which is not compacted.
const STEP_BYTES: usize = 8 << 10;

/// Where the round is.
#[derive(Debug)]
pub(crate) struct Spill {
    /// With fewer pages in use a round begins.
    below: AtomicU64,
    /// The longest object that the round has passed, and one more; zero without a round.
    next: AtomicU64,
}

impl Spill {
    pub(crate) fn new() -> Self {
        Self { below: AtomicU64::new(0), next: AtomicU64::new(0) }
    }
}

impl Pool {
    /// Goes on with a round, or begins one; after an object went.
    #[inline]
    pub(crate) fn spill_if_due(&self) {
        let used = self.objects.memory.pages.used();
        let Spill { below, next } = &self.spill;
        let bound = below.load(Ordering::Relaxed);
        let share = (used / PAGES_PER_ROUND).max(ROUND_PAGES_MIN);
        if used > bound + ROUNDS_KEPT * share {
            below.store(used - share, Ordering::Relaxed);
        } else if used < bound {
            below.store(used.saturating_sub(share), Ordering::Relaxed);
            next.store(1, Ordering::Relaxed);
        }
        if next.load(Ordering::Relaxed) != 0 {
            self.spill_next();
        }
    }

    #[cold]
    fn spill_next(&self) {
        let next = &self.spill.next;
        let at = next.load(Ordering::Relaxed);
        let page = self.page.bytes().get();
        if at == 0 || at > page {
            return next.store(0, Ordering::Relaxed);
        }
        let number = self.objects.classes.of(at as usize);
        let longest = self.objects.longest_of(number).max(at as usize);
        // Another thread may be ahead: then a class is looked at twice.
        next.store((longest as u64 + 1) % (page + 1), Ordering::Relaxed);
        let mut work = Work { bytes_left: STEP_BYTES, ..Work::default() };
        self.objects.compact(number, &mut work, false);
        self.objects.spill(number, &mut work);
        self.lower_one();
    }
}

impl Objects {
    fn longest_of(&self, number: u32) -> usize {
        self.classes.get(number).map_or(0, |class| class.lock().longest as usize)
    }

    /// Empties the emptiest zspage of a compacted class into larger classes, if it all fits.
    pub(crate) fn spill(&self, number: u32, work: &mut Work) {
        let Some(class) = self.classes.get(number) else { return };
        let (places, size, longest) = {
            let mut state = class.lock();
            (state.remainder(&self.memory), state.shape().size, state.longest as usize)
        };
        if places.is_empty() {
            return;
        }
        // Those that came from smaller classes go back first, where there is room.
        let mut places: Vec<Place> = places
            .into_iter()
            .filter(|(place, len)| {
                let home = self.classes.of(*len);
                home == number || !self.spill_to(number, home, &mut [*place].into_iter(), work)
            })
            .map(|(place, _)| place)
            .collect();
        let larger = self.larger(longest, size + size / SIZE_PER_LONGER);
        let room: usize = larger.iter().map(|(_, room)| room).sum();
        if room < places.len() {
            return;
        }
        let mut places = places.drain(..);
        for (target, _) in larger {
            self.spill_to(number, target, &mut places, work);
        }
    }

    /// Moves objects to another class as long as it has room; whether any was moved.
    fn spill_to(
        &self,
        number: u32,
        target: u32,
        places: &mut impl ExactSizeIterator<Item = Place>,
        work: &mut Work,
    ) -> bool {
        let memory = &self.memory;
        let Some((mut from, mut to)) = self.both(number, target) else { return false };
        let (size, to_size) = (from.shape().size, to.shape().size);
        let before = work.moved;
        while places.len() > 0 && to.has_room() && !to.is_retired {
            let Some(place) = places
                .next()
                .filter(|at| from.has(memory, at.zspage) && at.slot < from.shape().objects)
            else {
                break;
            };
            // Another object may have come to the slot, or be on its way there.
            if let Ok(Some(len)) = from.move_to(memory, &mut to, place, work) {
                from.went(self.classes.parts_below(size, len));
                to.came(self.classes.parts_below(to_size, len));
            }
        }
        work.moved > before
    }

    /// The classes of objects longer than `longest`, of slots up to `size`, and the free slots.
    fn larger(&self, longest: usize, size: u32) -> Vec<(u32, usize)> {
        let (mut found, mut len) = (Vec::new(), longest + 1);
        while found.len() < LARGER_MAX && len as u64 <= self.memory.pages.page_bytes() {
            let number = self.classes.of(len);
            let Some(class) = self.classes.get(number) else { break };
            let state = class.lock();
            if state.shape().size > size || state.is_retired || (state.longest as usize) < len {
                break;
            }
            found.push((number, state.free_slots()));
            len = state.longest as usize + 1;
        }
        found
    }
}
