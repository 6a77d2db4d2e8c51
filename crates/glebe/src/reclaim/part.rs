//! A [`Part`] sheds memory for one reclaimer.

use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::budget::{Budget, WeakBudget};
use super::class::Class;
use super::plan::PartStats;
use super::ReclaimError;
use crate::reserve::{Reserve, Shrinkable};
use crate::volatile::internal::{limit_marked, region_of, Shed};
use crate::volatile::{Cache, Priority, Purger, Region};
use crate::zpool::internal::shed as pool_shed;
use crate::zpool::ObjectPool;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::Bytes;

/// A `Part` is memory that a reclaimer can shed. `into` makes most parts from references.
#[derive(Debug)]
pub struct Part(Result<Handle, crate::reserve::ReserveError>);

#[derive(Debug)]
pub(super) enum Handle {
    Region(Weak<Region>),
    Purger(Weak<Purger>),
    Pool(Weak<ObjectPool>),
    Budget(WeakBudget),
    Reserve(Shrinkable),
}

impl From<&Arc<Region>> for Part {
    /// The part gives the region's marked memory.
    fn from(region: &Arc<Region>) -> Self {
        Self(Ok(Handle::Region(Arc::downgrade(region))))
    }
}

impl From<&Arc<Purger>> for Part {
    /// The part gives a shared file's unpinned marked memory.
    fn from(purger: &Arc<Purger>) -> Self {
        Self(Ok(Handle::Purger(Arc::downgrade(purger))))
    }
}

impl<K: Hash + Eq, V> From<&Cache<K, V>> for Part {
    /// The part gives the cache's marked entries. Give the cache the flag
    /// [`refills`](super::Reclaimer::refills) too, which forbids growth during a shortage.
    fn from(cache: &Cache<K, V>) -> Self {
        region_of(cache).into()
    }
}

impl From<&Arc<ObjectPool>> for Part {
    /// The part gives memory that compaction frees, and the oldest objects if the pool [may
    /// evict](crate::zpool::AtLimit::EvictOldest).
    fn from(pool: &Arc<ObjectPool>) -> Self {
        Self(Ok(Handle::Pool(Arc::downgrade(pool))))
    }
}

impl From<&Budget> for Part {
    /// The part gives bytes by lowering the budget.
    fn from(budget: &Budget) -> Self {
        Self(Ok(Handle::Budget(budget.downgrade())))
    }
}

impl Part {
    /// Makes a part of a reserve's memory that no first-class client holds. The reserve keeps at
    /// least `least` bytes.
    #[must_use]
    pub fn reserve(reserve: &Reserve, least: Bytes) -> Self {
        Self(reserve.shrinkable(least).map(Handle::Reserve))
    }

    pub(super) fn claimed(self, holder: Holder) -> Result<Handle, ReclaimError> {
        let handle = self.0?;
        let (is_taken, what) = match &handle {
            Handle::Region(weak) => (upgraded(weak, |it| it.claim_for(holder))?, "region"),
            Handle::Purger(weak) => (upgraded(weak, |it| it.claim_for(holder))?, "shared file"),
            Handle::Pool(weak) => {
                (upgraded(weak, |it| pool_shed::claim(it, holder))?, "object pool")
            }
            Handle::Budget(weak) => {
                (weak.upgrade().is_none_or(|words| words.claim(holder)), "budget")
            }
            Handle::Reserve(reserve) => (reserve.claim(holder), "reserve"),
        };
        if is_taken {
            Ok(handle)
        } else {
            Err(ReclaimError::Taken { what })
        }
    }
}

/// A dropped part counts as claimed.
fn upgraded<T, E>(
    weak: &Weak<T>,
    claim: impl FnOnce(&T) -> Result<bool, E>,
) -> Result<bool, ReclaimError>
where
    ReclaimError: From<E>,
{
    Ok(weak.upgrade().map(|part| claim(&part)).transpose()?.unwrap_or(true))
}

impl Handle {
    pub(super) fn stats(&self) -> Option<PartStats> {
        let mut stats = PartStats { is_charged: true, ..PartStats::default() };
        let all = &mut stats.sheddable;
        match self {
            Self::Region(weak) => {
                let sheddable = weak.upgrade()?.sheddable();
                all[..sheddable.len()].copy_from_slice(&sheddable);
                stats.is_lazy = true;
            }
            Self::Purger(weak) => {
                let sheddable = weak.upgrade()?.sheddable();
                all[..sheddable.len()].copy_from_slice(&sheddable);
            }
            Self::Pool(weak) => {
                let pool = weak.upgrade()?;
                all[Class::Waste.place()] = pool_shed::waste(&pool);
                all[Class::Objects.place()] = pool_shed::evictable(&pool);
            }
            Self::Budget(weak) => {
                let budget = weak.upgrade()?;
                all[Class::Budgets.place()] = budget.sheddable();
                stats.coming = budget.coming();
            }
            Self::Reserve(reserve) => {
                all[Class::Reserve.place()] = reserve.spare()?;
                stats.is_charged = reserve.is_charged();
            }
        }
        Some(stats)
    }

    /// Returns the bytes freed; for a budget, the bytes asked for.
    pub(super) fn shed(&self, class: Class, most: Bytes) -> Bytes {
        let freed = match (class, self) {
            (Class::Waste, Self::Pool(weak)) => {
                weak.upgrade().map(|it| pool_shed::shed_waste(&it, most))
            }
            (Class::Objects, Self::Pool(weak)) => {
                weak.upgrade().map(|it| pool_shed::shed_objects(&it, most))
            }
            (Class::Budgets, Self::Budget(weak)) => weak.upgrade().map(|it| it.lower(most)),
            (Class::Reserve, Self::Reserve(reserve)) => Some(reserve.shed(most)),
            _ => None,
        };
        freed.unwrap_or(Bytes::ZERO)
    }

    pub(super) fn oldest(&self, priority: Priority) -> Option<Instant> {
        match self {
            Self::Region(weak) => weak.upgrade()?.oldest(priority),
            Self::Purger(weak) => weak.upgrade()?.oldest(priority),
            _ => None,
        }
    }

    /// Sheds up to `most` bytes (rounded up) marked with `priority`, oldest first. After the first
    /// range, stops at a range marked after `until`.
    ///
    /// If a shared file fails, its [`Handle::oldest`] returns `None` until the next
    /// [`Handle::stats`], so the caller tries other parts.
    pub(super) fn shed_volatile(
        &self,
        priority: Priority,
        most: Bytes,
        until: Option<Instant>,
    ) -> Result<Bytes, ReclaimError> {
        match self {
            Self::Region(weak) => {
                let region = weak.upgrade();
                Ok(region.map_or(Ok(Bytes::ZERO), |it| it.shed(priority, most, until))?)
            }
            Self::Purger(weak) => {
                let purger = weak.upgrade();
                Ok(purger.map_or(Ok(Bytes::ZERO), |it| it.shed(priority, most, until))?)
            }
            _ => Ok(Bytes::ZERO),
        }
    }

    /// Limits a region's marked memory to `more` bytes beyond the present; `None` removes the
    /// limit.
    pub(super) fn limit_marked(&self, more: Option<Bytes>) -> Result<(), ReclaimError> {
        let Self::Region(weak) = self else { return Ok(()) };
        let Some(region) = weak.upgrade() else { return Ok(()) };
        let cap = more.map(|more| {
            let held = region.sheddable().iter().fold(0, |sum, held| sum + held.get());
            Bytes::new(held.saturating_add(more.get()))
        });
        Ok(limit_marked(&region, cap)?)
    }

    /// Returns an upper bound of bytes ever marked, which the kernel may count as page cache.
    pub(super) fn lazy_len(&self) -> Bytes {
        let Self::Region(weak) = self else { return Bytes::ZERO };
        weak.upgrade().map_or(Bytes::ZERO, |region| region.len())
    }

    pub(super) fn is_volatile(&self) -> bool {
        matches!(self, Self::Region(_))
    }

    pub(super) fn raise(&self, more: Bytes) {
        if let Self::Budget(weak) = self {
            let _ = weak.upgrade().map(|budget| budget.raise(more));
        }
    }

    pub(super) fn release(&self, holder: Holder) {
        match self {
            Self::Region(weak) => drop(weak.upgrade().map(|it| it.release(holder))),
            Self::Purger(weak) => drop(weak.upgrade().map(|it| it.release(holder))),
            Self::Pool(weak) => drop(weak.upgrade().map(|it| pool_shed::release(&it, holder))),
            Self::Budget(weak) => drop(weak.upgrade().map(|it| it.release(holder))),
            Self::Reserve(reserve) => reserve.release(holder),
        }
    }
}
