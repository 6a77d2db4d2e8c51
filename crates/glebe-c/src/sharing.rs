//! [`Sharing`] and [`Pinned`] are a shared region and a pin, as the tables of handles hold them.
//!
//! A call on a shared region may wait for the end of a fork, and a fork waits for the locks of the
//! tables. So a call takes a reference out of the table and then holds no lock of the table.
//! [`Sharing`] counts its pins, because a region with pins cannot be freed.
//!
//! # Safety
//! The reference beside a pin keeps its region alive. The pin is dropped first.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use glebe::units::Bytes;
use glebe::volatile::{Error, Pin, Purger, Shared};

use crate::references;
use crate::runs::Untold;
use crate::table::lock;

#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) untold: Untold,
    /// The purger that reclaimers share.
    purger: Mutex<Option<Arc<Purger>>>,
    pins: AtomicUsize,
}

impl Sharing {
    pub(crate) fn new(shared: Shared) -> Arc<Self> {
        let (shared, untold) = (Arc::new(shared), Untold::default());
        Arc::new(Self { shared, untold, purger: Mutex::default(), pins: AtomicUsize::new(0) })
    }

    /// Returns the purger, if any. Callers hold the table's lock.
    pub(crate) fn purger(&self) -> Option<Arc<Purger>> {
        lock(&self.purger).clone()
    }

    /// Keeps `purger`, unless the region has one already. Returns the purger that the region has.
    /// Callers hold the table's lock.
    pub(crate) fn keep(&self, purger: Arc<Purger>) -> Arc<Purger> {
        Arc::clone(lock(&self.purger).get_or_insert(purger))
    }

    /// Returns the number of pins, also those that are being made.
    pub(crate) fn pins(&self) -> usize {
        self.pins.load(Ordering::Acquire)
    }

    /// Waits until no call or reclaimer uses the region, and drops it.
    pub(crate) fn end(self: Arc<Self>) {
        drop(references::alone(references::alone(self).shared));
    }

    /// Gives up the parent's references and pins in a forked child.
    ///
    /// # Safety
    /// The contract of [`references::forget_others`] holds. This process never uses the parent's
    /// pins.
    pub(crate) unsafe fn forget_parents(self: &Arc<Self>) {
        self.pins.store(0, Ordering::Relaxed);
        // The purger is not dropped, because a lock inside it may be held for ever.
        std::mem::forget(lock(&self.purger).take());
        // SAFETY: the caller keeps the contract of both calls.
        unsafe {
            references::forget_others(&self.shared);
            references::forget_others(self);
        }
    }
}

#[derive(Debug)]
pub(crate) struct ForPin(Arc<Sharing>);

impl ForPin {
    pub(crate) fn new(of: &Arc<Sharing>) -> Self {
        of.pins.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
    }

    pub(crate) fn pin(self, range: Range<Bytes>) -> Result<Pinned, Error> {
        // SAFETY: `self` keeps the region alive, and the pin is dropped first.
        let shared: &'static Shared = unsafe { &*Arc::as_ptr(&self.0.shared) };
        Ok(Pinned { pin: shared.pin(range)?, _of: self })
    }
}

impl Drop for ForPin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct Pinned {
    /// Dropped first.
    pin: Pin<'static>,
    _of: ForPin,
}

impl Pinned {
    pub(crate) fn pin(&self) -> &Pin<'_> {
        &self.pin
    }
}
