//! [`plan`] computes the bytes that each class gives up. Allocates nothing.

use super::class::Class;
use super::policy::Policy;
use super::pressure::{Pressure, Scope};
use glebe_os::units::Bytes;

/// Bytes that a part could give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartStats {
    /// Bytes by class ([`Class::place`]).
    pub sheddable: [Bytes; Class::COUNT],
    /// True if the memory is charged to a cgroup. Most huge pages of the kernel's pool are not.
    pub is_charged: bool,
    /// True if the kernel may free the marked memory itself, and counts it as page cache.
    pub is_lazy: bool,
    /// Bytes that a budget's owner should free soon.
    pub coming: Bytes,
}

impl PartStats {
    pub(super) fn helps(&self, scope: Scope) -> bool {
        self.is_charged || scope == Scope::Machine
    }
}

/// Bytes to give up, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets([Bytes; Class::COUNT]);

impl Targets {
    /// Returns the bytes of one class.
    #[must_use]
    pub fn of(&self, class: Class) -> Bytes {
        self.0[class.place()]
    }

    /// Returns the bytes of all classes.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.0.iter().fold(Bytes::ZERO, |sum, part| sum + *part)
    }

    /// Returns true if all targets are zero.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.total() == Bytes::ZERO
    }
}

/// Computes the bytes that each class gives up: all of one class before any of the next, up to the
/// shortage. With [`Policy::keep_files`], marked memory may give up more.
///
/// ```
/// use glebe::internal::{plan, PartStats};
/// use glebe::reclaim::{Class, Policy, Pressure, Scope};
/// use glebe::units::Bytes;
///
/// let mut pool = PartStats { is_charged: true, ..PartStats::default() };
/// pool.sheddable[Class::Waste.place()] = Bytes::mib(1);
/// pool.sheddable[Class::Objects.place()] = Bytes::mib(50);
/// let (limit, used) = (Bytes::mib(96), Bytes::mib(92));
/// let pressure = Pressure { scope: Scope::Group, limit, used, ..Pressure::default() };
/// let policy = Policy::default().margin(Bytes::mib(8));
///
/// let targets = plan(&[pool], &pressure, &policy);
/// assert_eq!(targets.of(Class::Waste), Bytes::mib(1));
/// assert_eq!(targets.total(), policy.short(&pressure));
/// ```
#[must_use]
pub fn plan(parts: &[PartStats], pressure: &Pressure, policy: &Policy) -> Targets {
    plan_for(parts, pressure.scope, policy.short(pressure), policy.crowded(pressure))
}

pub(super) fn plan_for(
    parts: &[PartStats],
    scope: Scope,
    mut short: Bytes,
    mut crowded: Bytes,
) -> Targets {
    let mut targets = Targets::default();
    if short == Bytes::ZERO && crowded == Bytes::ZERO {
        return targets;
    }
    for class in Class::all() {
        if class == Class::Budgets {
            short = short.saturating_sub(sum(parts, scope, |part| part.coming));
        }
        let wanted = if class.is_volatile() { short.max(crowded) } else { short };
        let asked = wanted.min(there(parts, class, scope));
        targets.0[class.place()] = asked;
        short = short.saturating_sub(asked);
        crowded = crowded.saturating_sub(asked);
    }
    targets
}

fn there(parts: &[PartStats], class: Class, scope: Scope) -> Bytes {
    sum(parts, scope, |part| part.sheddable[class.place()])
}

fn sum(parts: &[PartStats], scope: Scope, of: impl Fn(&PartStats) -> Bytes) -> Bytes {
    let all = parts.iter().filter(|part| part.helps(scope));
    Bytes::new(all.fold(0, |sum, part| of(part).get().saturating_add(sum)))
}

#[cfg(test)]
mod tests;
