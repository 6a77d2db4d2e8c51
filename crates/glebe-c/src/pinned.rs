//! [`Pinnable`] counts C's pins on a store or region, which cannot be freed while pins exist.
//!
//! # Safety
//! A guard is the Rust library's pin. The reference beside the guard keeps the object alive at a
//! fixed address, and is dropped after the guard.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use glebe::swap::{Pin, PinMut, Region, Resident, Store, SwapError};

use crate::abi::glebe_reserve;

#[derive(Debug)]
pub(crate) struct Pinnable<T> {
    pub(crate) of: T,
    /// The reserve of the store's swap cache, or 0.
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

#[derive(Debug)]
struct Counted<T>(Arc<Pinnable<T>>);

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct Guarded<G, T> {
    /// Dropped first, because the guard borrows the object.
    guard: G,
    _of: Counted<T>,
}

impl<G, T: 'static> Guarded<G, T> {
    /// Counts the pin before `pin` makes it.
    fn new(
        of: &Arc<Pinnable<T>>,
        pin: impl FnOnce(&'static T) -> Result<G, SwapError>,
    ) -> Result<Self, SwapError> {
        of.pins.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(of));
        // SAFETY: `counted` keeps the object alive in place, and the guard is dropped first.
        let kept: &'static T = unsafe { &*ptr::from_ref(&counted.0.of) };
        Ok(Self { guard: pin(kept)?, _of: counted })
    }
}

#[derive(Debug)]
#[expect(dead_code)] // each variant is kept for its drop
pub(crate) enum SwapPin {
    Read(Guarded<Pin<'static>, Store>),
    Write(Guarded<PinMut<'static>, Store>),
    Resident(Guarded<Resident<'static>, Region>),
}

pub(crate) struct New<P> {
    pub(crate) pin: SwapPin,
    pub(crate) address: P,
    pub(crate) len: usize,
}

pub(crate) fn read(
    of: &Arc<Pinnable<Store>>,
    pin: impl FnOnce(&'static Store) -> Result<Pin<'static>, SwapError>,
) -> Result<New<*const c_void>, SwapError> {
    let guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Read(guarded), address, len })
}

pub(crate) fn write(
    of: &Arc<Pinnable<Store>>,
    pin: impl FnOnce(&'static Store) -> Result<PinMut<'static>, SwapError>,
) -> Result<New<*mut c_void>, SwapError> {
    let mut guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_mut_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Write(guarded), address, len })
}

pub(crate) fn resident(
    of: &Arc<Pinnable<Region>>,
    pin: impl FnOnce(&'static Region) -> Result<Resident<'static>, SwapError>,
) -> Result<New<*mut c_void>, SwapError> {
    let mut guarded = Guarded::new(of, pin)?;
    let (address, len) = (guarded.guard.as_mut_ptr().cast(), guarded.guard.len());
    Ok(New { pin: SwapPin::Resident(guarded), address, len })
}
