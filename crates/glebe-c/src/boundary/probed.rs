//! A place for an answer that C may have named wrongly: an error, and never a signal.
//!
//! For calls that a kernel would answer with EFAULT. Cost: three system calls, none for null.
//!
//! # Safety
//! What is written is C's to write, as it is at [`Out`], wherever it can be written at all.
#![allow(unsafe_code)]

use std::ffi::c_int;

use glebe::sys::peek::{peek, poke};
use glebe::volatile::Error;

use super::Out;
use crate::failure::Failure;

/// Where an `int` goes, unless C wants none. It could be written a moment ago.
pub(crate) struct Probed {
    addr: usize,
    name: &'static str,
}

impl Probed {
    /// Writes what is there already, so that a call that fails later has changed nothing.
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
        // SAFETY: as the head says.
        let written = unsafe { poke(self.addr, bytes) }.map_err(Error::from)?;
        if written == size_of::<c_int>() {
            return Ok(());
        }
        Err(Failure::NotWritable { name: self.name, addr: self.addr })
    }
}
