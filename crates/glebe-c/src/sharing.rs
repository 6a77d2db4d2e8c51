//! Shared regions and their pins, as the tables have them.
//!
//! A call on a shared region may wait for a fork, and a fork waits for the tables. So a call takes
//! a reference to the region out of its table ([`Sharing`]) and holds no lock of it. A pin has one
//! too, which is counted: a region that has pins is not ended.
//!
//! # Safety
//! A pin refers to the region that the reference beside it keeps, and is dropped first.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use glebe::units::Bytes;
use glebe::volatile::{Error, Pin, Purger, Shared};

use crate::references;
use crate::runs::Untold;
use crate::table::lock;

/// A shared region, and what C has not been told of it.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Other references are of looks under way.
    pub(crate) shared: Arc<Shared>,
    pub(crate) untold: Untold,
    /// What a reclaimer has of it.
    purger: Mutex<Option<Arc<Purger>>>,
    pins: AtomicUsize,
}

impl Sharing {
    pub(crate) fn new(shared: Shared) -> Arc<Self> {
        let (shared, untold) = (Arc::new(shared), Untold::default());
        Arc::new(Self { shared, untold, purger: Mutex::default(), pins: AtomicUsize::new(0) })
    }

    /// The purger of the region, if it was made part of a reclaimer before. With the table's lock.
    pub(crate) fn purger(&self) -> Option<Arc<Purger>> {
        lock(&self.purger).clone()
    }

    /// Keeps a purger of the region, unless it has one. With the table's lock.
    pub(crate) fn keep(&self, purger: Arc<Purger>) -> Arc<Purger> {
        Arc::clone(lock(&self.purger).get_or_insert(purger))
    }

    /// Pins that there are or will be in a moment.
    pub(crate) fn pins(&self) -> usize {
        self.pins.load(Ordering::Acquire)
    }

    /// Leaves the file, once no call and no look is under way.
    pub(crate) fn end(self: Arc<Self>) {
        drop(references::alone(references::alone(self).shared));
    }

    /// Gives up what belongs to the parent.
    ///
    /// # Safety
    /// As [`references::forget_others`]; pins of the parent are never looked at.
    pub(crate) unsafe fn forget_parents(self: &Arc<Self>) {
        self.pins.store(0, Ordering::Relaxed);
        // Its locks may be held for ever.
        std::mem::forget(lock(&self.purger).take());
        // SAFETY: the caller's duty.
        unsafe {
            references::forget_others(&self.shared);
            references::forget_others(self);
        }
    }
}

/// A reference for a pin, which is counted.
#[derive(Debug)]
pub(crate) struct ForPin(Arc<Sharing>);

impl ForPin {
    pub(crate) fn new(of: &Arc<Sharing>) -> Self {
        of.pins.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
    }

    /// Pins a range.
    pub(crate) fn pin(self, range: Range<Bytes>) -> Result<Pinned, Error> {
        // SAFETY: kept by the reference, which the pin does not outlive.
        let shared: &'static Shared = unsafe { &*Arc::as_ptr(&self.0.shared) };
        Ok(Pinned { pin: shared.pin(range)?, _of: self })
    }
}

impl Drop for ForPin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// A pin, and the region it is of.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// Dropped first.
    pin: Pin<'static>,
    _of: ForPin,
}

impl Pinned {
    /// The pin, for no longer than its region is kept.
    pub(crate) fn pin(&self) -> &Pin<'_> {
        &self.pin
    }
}
