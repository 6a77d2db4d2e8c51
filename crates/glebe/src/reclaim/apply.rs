//! [`apply`] is the only function that sheds memory.
//!
//! [`apply`] sheds volatile memory of a priority oldest first, across all parts. Other classes shed
//! part after part, in the order of addition. A part may free more than asked, because it rounds
//! up.

use std::time::Instant;

use super::class::Class;
use super::part::Handle;
use super::plan::{PartStats, Targets};
use super::pressure::Scope;
use crate::volatile::Priority;
use glebe_os::units::Bytes;

/// `Reclaimed` is the result of a look or of `shed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Bytes asked for.
    pub asked: Bytes,
    /// Bytes freed, by class ([`Class::place`]); for budgets, bytes asked for.
    pub freed: [Bytes; Class::COUNT],
    /// Fall of the group's usage or rise of the machine's free memory, in bytes.
    pub measured: Bytes,
    /// Calls to parts that failed.
    pub failed: u64,
}

impl Reclaimed {
    /// Returns the bytes freed of a class.
    #[must_use]
    pub fn freed_of(&self, class: Class) -> Bytes {
        self.freed[class.place()]
    }

    /// Returns the bytes freed at once: all but budgets.
    #[must_use]
    pub fn freed(&self) -> Bytes {
        let at_once = Class::all().filter(|class| *class != Class::Budgets);
        at_once.fold(Bytes::ZERO, |sum, class| sum + self.freed_of(class))
    }

    pub(super) fn freed_of_others(&self) -> bool {
        let others = Class::all().filter(|class| !class.is_volatile());
        others.into_iter().any(|class| self.freed_of(class) > Bytes::ZERO)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.asked = self.asked + other.asked;
        self.measured = self.measured + other.measured;
        self.failed += other.failed;
        self.freed.iter_mut().zip(other.freed).for_each(|(sum, freed)| *sum = *sum + freed);
    }
}

/// `stats` is in the order of `parts`.
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
                // Limits the calls to a part that keeps failing.
                failures += 1;
            }
        }
    }
    freed
}
