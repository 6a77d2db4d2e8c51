//! Pins of shared regions. A forked child inherits no pins, because they are in the tables of the
//! process that made them.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};

use glebe::units::Bytes;
use glebe::volatile::{Error, Pin};

use super::claims::{range, Inside};
use super::shared::find_for_pin;
use crate::abi::*;
use crate::boundary::{call, Array, In, Out};
use crate::failure::Failure;
use crate::process::{hold, insert, with, Process};

#[no_mangle]
pub extern "C" fn glebe_pin_new(
    shared: glebe_shared,
    offset_bytes: u64,
    len_bytes: u64,
    pin: Out<glebe_pin>,
) -> c_int {
    call(|| {
        let (out, range) = (pin.checked("pin")?, range(offset_bytes, len_bytes)?);
        let _inside = Inside::enter()?;
        let pinned = find_for_pin(shared)?.pin(range)?;
        let is_kept = pinned.pin().lost().runs().is_empty();
        out.set(insert(Process::create()?, || Ok([pinned]))?);
        Ok(if is_kept { GLEBE_PIN_KEPT } else { GLEBE_PIN_LOST })
    })
}

#[no_mangle]
pub extern "C" fn glebe_pin_free(pin: glebe_pin) -> c_int {
    call(|| {
        let _inside = Inside::enter()?;
        let (_, mut held) = hold(pin)?;
        let ended = held.take();
        drop(held);
        drop(ended);
        Ok(GLEBE_OK)
    })
}

fn on<R>(pin: glebe_pin, call: impl FnOnce(&Pin<'_>) -> Result<R, Error>) -> Result<R, Failure> {
    let _inside = Inside::enter()?;
    with(pin, |of| Ok(call(of.pin())?))
}

#[no_mangle]
pub extern "C" fn glebe_pin_memory(
    pin: glebe_pin,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
) -> c_int {
    call(|| {
        on(pin, |of| {
            address.set(of.as_ptr().cast());
            Ok(len_bytes.set(of.len().get()))
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_pin_lost(
    pin: glebe_pin,
    runs: Out<glebe_extent>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(runs, capacity, count, "runs")?;
        on(pin, |of| {
            out.set(of.lost().runs().iter().map(glebe_extent::of));
            Ok(GLEBE_OK)
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_pin_restored(pin: glebe_pin) -> c_int {
    call(|| {
        on(pin, |of| of.restored())?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_pin_read(
    pin: glebe_pin,
    offset_bytes: u64,
    mut buffer: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let to = buffer.bytes(len_bytes, "buffer")?;
        on(pin, |of| of.read(Bytes::new(offset_bytes), to))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_pin_write(
    pin: glebe_pin,
    offset_bytes: u64,
    bytes: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let from = bytes.bytes(len_bytes, "bytes")?;
        on(pin, |of| of.write(Bytes::new(offset_bytes), from))?;
        Ok(GLEBE_OK)
    })
}
