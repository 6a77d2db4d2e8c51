//! [`apply`]: the only place that sheds, in the order of the classes; and [`Reclaimed`], what came
//! of it.
//!
//! Within a priority of volatile memory the oldest of all parts goes first, range by range: part
//! after part is asked for what is older than the oldest of the next. Parts of the other classes
//! give in the order in which they were added. Each rounds up to its own granule: a page, a
//! zspage, a unit of a reserve. Allocates nothing by itself.

use std::time::Instant;

use super::class::Class;
use super::part::Handle;
use super::plan::{PartStats, Targets};
use super::pressure::Scope;
use crate::units::Bytes;
use crate::volatile::Priority;

/// What a look at memory led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// What was to go.
    pub asked: Bytes,
    /// What went, by class ([`Class::place`]): pages that were in memory and are not any more; of
    /// budgets, what their owners were asked for.
    pub freed: [Bytes; Class::COUNT],
    /// By how much the usage of the group fell, or what is free in the machine rose, from just
    /// before to just after. Others use and free memory meanwhile.
    pub measured: Bytes,
    /// Parts that failed, and were passed over.
    pub failed: u64,
}

impl Reclaimed {
    /// What went of a class.
    #[must_use]
    pub fn freed_of(&self, class: Class) -> Bytes {
        self.freed[class.place()]
    }

    /// What went at once: all but budgets.
    #[must_use]
    pub fn freed(&self) -> Bytes {
        let at_once = Class::all().filter(|class| *class != Class::Budgets);
        at_once.fold(Bytes::ZERO, |sum, class| sum + self.freed_of(class))
    }

    /// Whether anything but volatile memory went, or was asked for.
    pub(super) fn freed_of_others(&self) -> bool {
        let others = Class::all().filter(|class| !class.is_volatile());
        others.into_iter().any(|class| self.freed_of(class) > Bytes::ZERO)
    }

    /// Both, one after the other.
    pub(super) fn add(&mut self, other: &Self) {
        self.asked = self.asked + other.asked;
        self.measured = self.measured + other.measured;
        self.failed += other.failed;
        self.freed.iter_mut().zip(other.freed).for_each(|(sum, freed)| *sum = *sum + freed);
    }
}

/// Sheds what `targets` say; `stats` are those of the parts, one each.
pub(super) fn apply(
    parts: &[Handle],
    stats: &[PartStats],
    scope: Scope,
    targets: &Targets,
) -> Reclaimed {
    let mut done = Reclaimed { asked: targets.total(), ..Reclaimed::default() };
    for class in Class::all() {
        let most = targets.of(class);
        if most == Bytes::ZERO {
            continue;
        }
        done.freed[class.place()] = match class {
            Class::Volatile(priority) => volatile(parts, priority, most, &mut done.failed),
            _ => in_turn(parts, stats, scope, class, most),
        };
    }
    done
}

fn in_turn(
    parts: &[Handle],
    stats: &[PartStats],
    scope: Scope,
    class: Class,
    most: Bytes,
) -> Bytes {
    let mut freed = Bytes::ZERO;
    for (part, stats) in parts.iter().zip(stats) {
        let missing = most.saturating_sub(freed).min(stats.sheddable[class.place()]);
        if missing > Bytes::ZERO && stats.helps(scope) {
            freed = freed + part.shed(class, missing);
        }
    }
    freed
}

fn volatile(parts: &[Handle], priority: Priority, most: Bytes, failed: &mut u64) -> Bytes {
    let (mut freed, mut failures) = (Bytes::ZERO, 0);
    while freed < most && failures <= parts.len() {
        let (mut first, mut second): (Option<(&Handle, Instant)>, Option<Instant>) = (None, None);
        for part in parts {
            let Some(oldest) = part.oldest(priority) else { continue };
            match first {
                Some((_, than)) if than <= oldest => {
                    second = Some(second.map_or(oldest, |second| second.min(oldest)));
                }
                _ => {
                    second = first.map(|(_, oldest)| oldest);
                    first = Some((part, oldest));
                }
            }
        }
        let Some((part, _)) = first else { break };
        match part.shed_volatile(priority, most.saturating_sub(freed), second) {
            Ok(more) => freed = freed + more,
            Err(_) => {
                *failed += 1;
                // Others may have some. A part that fails again is asked no more often than there
                // are parts.
                failures += 1;
            }
        }
    }
    freed
}
