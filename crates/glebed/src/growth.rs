//! [`Growth`] limits the memory that is added for leases. [`run`] adds memory and gives it back.
//!
//! The grower adds memory when the server asks. It gives memory back that no lease used for
//! [`Settings::idle`](crate::Settings::idle), and in a shortage ([`glebe::reclaim`]). It also
//! replaces pages that left the reserve. A search for adjacent pages may take seconds, so the
//! grower has its own thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glebe::internal::sync::{MappedWord, Ordering};
use glebe::internal::LostPages;
use glebe::reclaim::{Part, Policy, ReclaimError, Reclaimer};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::{Bytes, Pages};

use crate::keeper::Kept;
use crate::stats::Counter;
use crate::Settings;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_MIN: Duration = Duration::from_millis(10);
/// Longest time between two attempts to replace pages.
const REST_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Growth {
    base: Bytes,
    most: Bytes,
    idle: Duration,
    rest: Duration,
    /// Bytes that the grower adds now.
    pub(crate) asked: MappedWord,
    refused: Mutex<Option<Refused>>,
}

/// The last attempt to add memory, if it failed.
#[derive(Debug)]
struct Refused {
    at: Instant,
    why: String,
}

impl Growth {
    pub(crate) fn new(base: Bytes, settings: &Settings) -> Self {
        let Settings { grow, idle, rest, .. } = *settings;
        Self { base, most: grow, idle, rest, asked: MappedWord::new(0), refused: Mutex::new(None) }
    }

    fn refused(&self) -> MutexGuard<'_, Option<Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why an attempt failed, for the time without another one.
    pub(crate) fn resting(&self) -> Option<String> {
        let refused = self.refused();
        let Refused { at, why } = refused.as_ref()?;
        let left =
            self.rest.checked_sub(at.elapsed()).filter(|left| !left.is_zero())?.as_secs() + 1;
        Some(format!("no memory could be added, a request after {left} s tries again: {why}"))
    }

    /// Returns the bytes that may be added now.
    pub(crate) fn left(&self, grown: Bytes) -> Bytes {
        match self.resting() {
            Some(_) => Bytes::ZERO,
            None => self.most.saturating_sub(grown),
        }
    }
}

impl Kept {
    /// Returns the bytes that were added for leases.
    pub(crate) fn grown(&self, reserve: &Reserve) -> Bytes {
        let lost = Pages::new(self.lost.load(Ordering::Acquire));
        (reserve.len() + lost).bytes(glebe::page_size()).saturating_sub(self.growth.base)
    }
}

/// The least number of bytes that were unused since a time.
struct Unused {
    since: Instant,
    least: Bytes,
}

impl Unused {
    fn new() -> Self {
        Self { since: Instant::now(), least: Bytes::new(u64::MAX) }
    }

    /// Returns the bytes that were unused for the time `idle`, once in that time.
    fn look(&mut self, now: Bytes, idle: Duration) -> Bytes {
        self.least = self.least.min(now);
        match self.since.elapsed() < idle {
            true => Bytes::ZERO,
            false => std::mem::replace(self, Self::new()).least,
        }
    }
}

/// Attempts to replace lost pages, which become smaller and rarer while they fail.
struct Repair {
    step: u64,
    rest: Duration,
    next: Instant,
    /// Pages lost since the last attempt.
    fresh: u64,
}

/// Work for the grower.
#[derive(Debug)]
pub(crate) enum Task {
    Add(Bytes),
    Lose(LostPages),
}

pub(crate) fn run(reserve: &Reserve, kept: &Kept, tasks: &Receiver<Task>) {
    let growth = &kept.growth;
    let reclaimer = (growth.most > Bytes::ZERO).then(|| reclaimer(reserve, growth.base));
    let reclaimer = reclaimer.transpose().unwrap_or_else(|error| {
        eprintln!("glebed: no memory is added for leases, because its room is unknown: {error}");
        None
    });
    let mut repair = Repair { step: u64::MAX, rest: LOOK, next: Instant::now(), fresh: 0 };
    let mut unused = Unused::new();
    loop {
        match tasks.recv_timeout(LOOK.min(growth.idle / 4).max(LOOK_MIN)) {
            Ok(Task::Lose(mut lost)) => {
                // Counted before they leave, so that no request misses them in between.
                let count = lost.count().get();
                kept.lost.fetch_add(count, Ordering::AcqRel);
                let left = lost.leave().get();
                kept.lost.fetch_sub(count - left.min(count), Ordering::AcqRel);
                kept.counts.add(Counter::Lost, left);
                repair.hurry(count);
            }
            Ok(Task::Add(bytes)) => {
                let added = reclaimer.as_ref().map(|it| add(reserve, kept, it, bytes));
                let added = added.unwrap_or_else(|| Err("its room is unknown".to_owned()));
                *growth.refused() = added.err().map(|why| Refused { at: Instant::now(), why });
                growth.asked.store(0, Ordering::Release);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        repair.look(reserve, kept);
        let stats = reserve.stats();
        let free = (stats.free + stats.live).bytes(glebe::page_size());
        let spare = unused.look(free.min(kept.grown(reserve)), growth.idle);
        give_back(reserve, kept, spare);
    }
}

/// Takes memory above `base` in a shortage.
fn reclaimer(reserve: &Reserve, base: Bytes) -> Result<Reclaimer, ReclaimError> {
    let reclaimer = Reclaimer::new(Policy::default())?;
    reclaimer.add(Part::reserve(reserve, base))?;
    reclaimer.start()?;
    Ok(reclaimer)
}

/// Returns why there is no memory: the machine is short of it, or the kernel finds no pages.
fn add(reserve: &Reserve, kept: &Kept, reclaimer: &Reclaimer, bytes: Bytes) -> Result<(), String> {
    reclaimer.poll().map_err(|error| error.to_string())?;
    let (seen, more) = (reclaimer.stats(), bytes.pages_up(glebe::page_size()));
    // A reclaimer would take back what leaves less.
    let least = Pages::new(seen.margin.get() + seen.margin.get() / 2 + more.get());
    if seen.room < least {
        let [room, least] = [seen.room, least].map(|pages| pages.bytes(glebe::page_size()));
        return Err(format!("the machine has {room} available, and {least} are needed"));
    }
    reserve.grow(bytes).map_err(|error| error.to_string())?;
    kept.counts.add(Counter::Added, more.get());
    Ok(())
}

fn give_back(reserve: &Reserve, kept: &Kept, spare: Bytes) {
    // The reserve would round up.
    let brick = kept.brick.get();
    let spare = Bytes::new(spare.get() / brick * brick);
    if spare == Bytes::ZERO {
        return;
    }
    let given = reserve.shrink(spare).or_else(|error| match error {
        // Promises keep the rest.
        ReserveError::NotGiven { free, .. } if free > Bytes::ZERO => {
            reserve.shrink(free.min(spare))
        }
        other => Err(other),
    });
    let pages = given.map_or(Pages::ZERO, |given| given.len.pages_down(glebe::page_size()));
    kept.counts.add(Counter::GivenBack, pages.get());
}

impl Repair {
    /// Tries again soon, because the cause of earlier failures may be gone.
    fn hurry(&mut self, lost: u64) {
        self.fresh += lost;
        self.rest = LOOK;
        self.next = self.next.min(Instant::now() + LOOK);
    }

    fn look(&mut self, reserve: &Reserve, kept: &Kept) {
        while self.next <= Instant::now() && kept.is_ending.load(Ordering::Acquire) == 0 {
            let missing = kept.lost.load(Ordering::Acquire);
            let brick = kept.brick.pages_down(glebe::page_size()).get();
            let step = missing.min(self.step).next_multiple_of(brick);
            if missing == 0 {
                (self.step, self.rest) = (u64::MAX, LOOK);
            } else if reserve.grow(Pages::new(step).bytes(glebe::page_size())).is_ok() {
                kept.lost.fetch_sub(step.min(missing), Ordering::AcqRel);
                self.rest = LOOK;
                continue;
            } else {
                // Tries half of it next. Rests longer, because others wait for the pool's lock.
                self.step = (step / 2).max(brick);
                self.rest = (self.rest * 2).min(REST_MAX);
            }
            let fresh = Pages::new(std::mem::take(&mut self.fresh));
            kept.under_way(fresh.bytes(glebe::page_size()).get(), false);
            self.next = Instant::now() + self.rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_unused_all_the_time_is_told_once() {
        let mut unused = Unused::new();
        let hour = Duration::from_secs(3600);
        assert_eq!(unused.look(Bytes::mib(8), hour), Bytes::ZERO);
        assert_eq!(unused.look(Bytes::mib(2), hour), Bytes::ZERO);
        assert_eq!(unused.look(Bytes::mib(6), Duration::ZERO), Bytes::mib(2));
        assert_eq!(unused.look(Bytes::mib(4), Duration::ZERO), Bytes::mib(4));
        assert_eq!(unused.look(Bytes::ZERO, Duration::ZERO), Bytes::ZERO);
    }

    #[test]
    fn growth_ends_at_its_limit_and_rests_after_a_refusal() {
        let settings = Settings { grow: Bytes::mib(6), ..Settings::default() };
        let growth = Growth::new(Bytes::mib(8), &settings);
        assert_eq!(growth.left(Bytes::mib(2)), Bytes::mib(4));
        assert_eq!(growth.left(Bytes::mib(7)), Bytes::ZERO);
        let refused = |at| *growth.refused() = Some(Refused { at, why: "no pages".to_owned() });
        refused(Instant::now());
        assert_eq!(growth.left(Bytes::ZERO), Bytes::ZERO);
        let why = growth.resting().unwrap();
        assert!(
            why.starts_with("no memory could be added, ") && why.ends_with(": no pages"),
            "{why}"
        );
        refused(Instant::now() - growth.rest);
        assert!(growth.resting().is_none());
        assert_eq!(growth.left(Bytes::ZERO), Bytes::mib(6));
    }

    #[test]
    fn lost_pages_are_under_way_until_an_attempt_to_replace_them() {
        use glebe::contig::{Contig, Source};
        let memory = Contig::options().source(Source::Plain);
        let options = Reserve::options().memory(memory).room(Bytes::mib(6));
        let reserve = options.build(Bytes::mib(4)).unwrap();
        let growth = Growth::new(Bytes::mib(6), &Settings::default());
        let (rest, kept) = (growth.rest, Kept::of_growth(growth, Bytes::mib(2)));
        let mut repair = Repair { step: u64::MAX, rest, next: Instant::now(), fresh: 0 };
        let pages = Bytes::mib(2).pages_down(glebe::page_size());
        for (lost_after, len) in [(0, 6), (pages.get(), 6)] {
            kept.under_way(Bytes::mib(2).get(), true);
            kept.lost.fetch_add(pages.get(), Ordering::AcqRel);
            repair.hurry(pages.get());
            repair.next = Instant::now();
            repair.look(&reserve, &kept);
            assert_eq!(kept.lost.load(Ordering::Acquire), lost_after);
            assert_eq!(kept.returning.load(Ordering::Acquire), 0);
            assert_eq!(reserve.len().bytes(glebe::page_size()), Bytes::mib(len));
        }
        assert_eq!(repair.rest, LOOK * 2, "a failed attempt doubles the rest");
    }
}
