//! Stores and regions whose memory C keeps pinned, and the pins, as the tables have them.
//!
//! A pin has a reference to what it is of, which is counted: what has pins is not ended.
//!
//! # Safety
//! A guard refers to what the reference beside it keeps at one address, and is dropped first.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use glebe::swap::{Error, Pin, PinMut, Region, Resident, Store};

use crate::abi::glebe_reserve;

/// A store or a region, and how many pins there are or will be in a moment.
#[derive(Debug)]
pub(crate) struct Pinnable<T> {
    pub(crate) of: T,
    /// Whose memory its swap cache has: 0 if none is.
    pub(crate) reserve: glebe_reserve,
    pins: AtomicUsize,
}

impl<T> Pinnable<T> {
    pub(crate) fn new(of: T) -> Arc<Self> {
        Self::in_reserve(glebe_reserve::default(), of)
    }

    pub(crate) fn in_reserve(reserve: glebe_reserve, of: T) -> Arc<Self> {
        Arc::new(Self { of, reserve, pins: AtomicUsize::new(0) })
    }

    pub(crate) fn pins(&self) -> usize {
        self.pins.load(Ordering::Acquire)
    }
}

/// A reference that is counted.
#[derive(Debug)]
struct Counted<T>(Arc<Pinnable<T>>);

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// A guard, and what it is of.
#[derive(Debug)]
pub(crate) struct Guarded<G, T> {
    /// Dropped first.
    guard: G,
    _of: Counted<T>,
}

impl<G, T: 'static> Guarded<G, T> {
    /// What `pin` gives, and the reference that keeps it good.
    fn new(
        of: &Arc<Pinnable<T>>,
        pin: impl FnOnce(&'static T) -> Result<G, Error>,
    ) -> Result<Self, Error> {
        of.pins.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(of));
        // SAFETY: kept by the reference, which the guard does not outlive.
        let kept: &'static T = unsafe { &*ptr::from_ref(&counted.0.of) };
        Ok(Self { guard: pin(kept)?, _of: counted })
    }
}

/// Memory of a store or a region that stays.
#[derive(Debug)]
#[expect(dead_code)] // each is kept for its drop
pub(crate) enum SwapPin {
    Read(Guarded<Pin<'static>, Store>),
    Write(Guarded<PinMut<'static>, Store>),
    Resident(Guarded<Resident<'static>, Region>),
}

/// A new pin, and its bytes: to be read, or to be written too.
pub(crate) struct New<P> {
    pub(crate) pin: SwapPin,
    pub(crate) address: P,
    pub(crate) len: usize,
}

/// Pins to be read.
pub(crate) fn read(
    of: &Arc<Pinnable<Store>>,
    pin: impl FnOnce(&'static Store) -> Result<Pin<'static>, Error>,
) -> Result<New<*const c_void>, Error> {
    let guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Read(guarded), address, len })
}

/// Pins to be written.
pub(crate) fn write(
    of: &Arc<Pinnable<Store>>,
    pin: impl FnOnce(&'static Store) -> Result<PinMut<'static>, Error>,
) -> Result<New<*mut c_void>, Error> {
    let mut guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_mut_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Write(guarded), address, len })
}

/// Pins a part of a region.
pub(crate) fn resident(
    of: &Arc<Pinnable<Region>>,
    pin: impl FnOnce(&'static Region) -> Result<Resident<'static>, Error>,
) -> Result<New<*mut c_void>, Error> {
    let mut guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_mut_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Resident(guarded), address, len })
}
