//! [`Budget`] limits the bytes of a cache.
//!
//! The reclaimer lowers the limit, and gives the program a second to free the bytes above the
//! limit. A budget suits only memory that returns to the system when freed. Memory of a reserve
//! does not.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::processes::claim::{Claim, Holder};
use glebe_os::units::Bytes;

const PATIENCE: Duration = Duration::from_secs(1);

/// Limits a cache's bytes. Clones share one value.
///
/// ```
/// use glebe::reclaim::{Budget, Policy, Reclaimer};
/// use glebe::units::Bytes;
///
/// let budget = Budget::new(Bytes::mib(64));
/// let reclaimer = Reclaimer::new(Policy::default())?;
/// reclaimer.add(&budget)?;
/// // Now and then, and after each change:
/// let mut cache = vec![0_u8; 1 << 20];
/// cache.truncate(budget.allowed().as_usize());
/// cache.shrink_to_fit();
/// budget.set_held(Bytes::new(cache.capacity() as u64));
/// # Ok::<(), glebe::reclaim::ReclaimError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Budget(Arc<Words>);

pub(super) type WeakBudget = Weak<Words>;

#[derive(Debug)]
pub(super) struct Words {
    most: u64,
    allowed: MappedWord,
    held: MappedWord,
    made: Instant,
    /// Milliseconds from `made` to the last lowering.
    lowered: MappedWord,
    claim: Claim,
}

impl Budget {
    /// Creates a budget of `most` bytes.
    #[must_use]
    pub fn new(most: Bytes) -> Self {
        let most = most.get();
        Self(Arc::new(Words {
            most,
            allowed: MappedWord::new(most),
            held: MappedWord::new(0),
            made: Instant::now(),
            lowered: MappedWord::new(0),
            claim: Claim::default(),
        }))
    }

    /// Returns the bytes that may be held now: all, if no reclaimer of this process has the budget.
    #[must_use]
    pub fn allowed(&self) -> Bytes {
        let words = &self.0;
        let allowed = words.allowed.load(Ordering::Relaxed);
        Bytes::new(if words.claim.is_held() { allowed } else { words.most })
    }

    /// Reports the bytes held.
    pub fn set_held(&self, held: Bytes) {
        self.0.held.store(held.get(), Ordering::Relaxed);
    }

    /// Returns the bytes last reported as held.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new(self.0.held.load(Ordering::Relaxed))
    }

    pub(super) fn downgrade(&self) -> WeakBudget {
        Arc::downgrade(&self.0)
    }
}

impl Words {
    pub(super) fn claim(&self, holder: Holder) -> bool {
        let is_new = !self.claim.is_held();
        let taken = self.claim.take(holder);
        if taken && is_new {
            self.allowed.store(self.most, Ordering::Relaxed);
        }
        taken
    }

    pub(super) fn release(&self, holder: Holder) {
        self.claim.release(holder);
    }

    pub(super) fn sheddable(&self) -> Bytes {
        let allowed = self.allowed.load(Ordering::Relaxed);
        Bytes::new(self.held.load(Ordering::Relaxed).min(allowed))
    }

    pub(super) fn coming(&self) -> Bytes {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let since = self.now().saturating_sub(self.lowered.load(Ordering::Relaxed));
        if since > PATIENCE.as_millis() as u64 {
            return Bytes::ZERO;
        }
        Bytes::new(self.held.load(Ordering::Relaxed).saturating_sub(allowed))
    }

    pub(super) fn lower(&self, by: Bytes) -> Bytes {
        let sheddable = self.sheddable();
        let by = by.min(sheddable);
        self.allowed.store((sheddable - by).get(), Ordering::Relaxed);
        self.lowered.store(self.now(), Ordering::Relaxed);
        by
    }

    pub(super) fn raise(&self, more: Bytes) {
        let held = self.held.load(Ordering::Relaxed);
        let allowed = held.saturating_add(more.get()).min(self.most);
        self.allowed.fetch_max(allowed, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
