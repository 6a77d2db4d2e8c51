//! [`Probed`] is the place for an answer, at an address that may be invalid. A write to an invalid
//! address fails, as a system call does with EFAULT, and raises no signal.
//!
//! Cost: three system calls, none for null.
//!
//! # Safety
//! No other code uses the place during the call, as [`Out`] requires.
#![allow(unsafe_code)]

use std::ffi::c_int;

use glebe::internal::sys::memory::peek::{peek, poke};
use glebe::volatile::Error;

use super::Out;
use crate::failure::Failure;

/// The place for an `int`, checked as writable; null if C wants no answer.
pub(crate) struct Probed {
    addr: usize,
    name: &'static str,
}

impl Probed {
    /// Checks the place by writing its old value back, so that a call that fails later has changed
    /// nothing.
    pub(crate) fn new(to: Out<c_int>, name: &'static str) -> Result<Self, Failure> {
        let probed = Self { addr: to.addr(), name };
        if probed.addr != 0 {
            let mut there = [0; size_of::<c_int>()];
            let read = peek(probed.addr, &mut there).map_err(Error::from)?;
            probed.write(&there[..read])?;
        }
        Ok(probed)
    }

    pub(crate) fn set(&self, value: c_int) -> Result<(), Failure> {
        match self.addr {
            0 => Ok(()),
            _ => self.write(&value.to_ne_bytes()),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: by the header, only this call uses the place.
        let written = unsafe { poke(self.addr, bytes) }.map_err(Error::from)?;
        if written == size_of::<c_int>() {
            return Ok(());
        }
        Err(Failure::NotWritable { name: self.name, addr: self.addr })
    }
}
