//! [`plan`]: what each class gives up, from limits and parts alone. Pure; allocates nothing.

use super::class::Class;
use super::policy::Policy;
use super::pressure::{Pressure, Scope};
use crate::units::Bytes;

/// What a part could give up now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartStats {
    /// By class, in their order ([`Class::place`]).
    pub sheddable: [Bytes; Class::COUNT],
    /// Whether its memory counts in groups. Huge pages of a pool, as a rule, count nowhere but in
    /// the machine: where a group is short they are no help.
    pub is_charged: bool,
    /// Whether the kernel takes its marked memory by itself, and counts it as page cache.
    pub is_lazy: bool,
    /// What was asked of a budget and is about to come.
    pub coming: Bytes,
}

impl PartStats {
    /// Whether its memory counts in `scope`.
    pub(super) fn helps(&self, scope: Scope) -> bool {
        self.is_charged || scope == Scope::Machine
    }
}

/// How much each class is to give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets([Bytes; Class::COUNT]);

impl Targets {
    /// Of one class.
    #[must_use]
    pub fn of(&self, class: Class) -> Bytes {
        self.0[class.place()]
    }

    /// Of all.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.0.iter().fold(Bytes::ZERO, |sum, part| sum + *part)
    }

    /// Whether nothing is to go.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.total() == Bytes::ZERO
    }
}

/// What `parts` are to give up under `pressure`: in the order of the classes, each as much as it
/// has before the next gives anything, all together no more than is missing. Volatile memory
/// alone makes room for files.
///
/// ```
/// use glebe::reclaim::{plan, Class, PartStats, Policy, Pressure, Scope};
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

/// What `parts` are to give up for what is missing of everything, and of room beside files.
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

/// What all parts have of a class.
fn there(parts: &[PartStats], class: Class, scope: Scope) -> Bytes {
    sum(parts, scope, |part| part.sheddable[class.place()])
}

/// Of all parts whose memory counts where it is short.
fn sum(parts: &[PartStats], scope: Scope, of: impl Fn(&PartStats) -> Bytes) -> Bytes {
    let all = parts.iter().filter(|part| part.helps(scope));
    Bytes::new(all.fold(0, |sum, part| of(part).get().saturating_add(sum)))
}

#[cfg(test)]
mod tests;
