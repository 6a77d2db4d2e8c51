//! Exports swap stores and regions: their options, their pins, and how they end.
#![allow(unsafe_code)] // exported names

mod area;
mod region;
mod store;

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

use glebe::internal::stats::LANES;
use glebe::swap::{Stats, Store, SwapError, SwapOptions};
use glebe::units::Bytes;

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::{none_of, Failure};
use crate::pinned::{New, Pinnable};
use crate::process::{end, hold, insert, Handle, Process};
use crate::stats::form;
use crate::zpool::codec;

/// Calls `to` with the directory and maximum length of a file, or with `None` if both are missing.
/// Refuses one without the other.
fn file<R>(
    directory: Chars,
    file_bytes: u64,
    to: impl FnOnce(Option<(&Path, Bytes)>) -> R,
) -> Result<R, Failure> {
    let directory = In::member(directory);
    match (directory.path(), file_bytes) {
        (None, 0) => Ok(to(None)),
        (Some(_), 0) => Err(Failure::bad("file_bytes beside file_directory", 0)),
        (None, bytes) => Err(Failure::bad("file_bytes without file_directory", bytes)),
        (Some(directory), bytes) => Ok(to(Some((directory, Bytes::new(bytes))))),
    }
}

fn options(asked: &glebe_swap_options) -> Result<SwapOptions, Failure> {
    let mut options = Store::options().codec(codec(asked.codec, asked.zstd_level)?);
    if asked.pool_limit_bytes > 0 {
        options = options.pool_limit(Bytes::new(asked.pool_limit_bytes));
    }
    if asked.capacity_bytes > 0 {
        options = options.capacity(Bytes::new(asked.capacity_bytes));
    }
    let options = options.keep_copies(!Failure::flag("drop_copies", asked.drop_copies)?);
    let options =
        if Failure::flag("encrypt", asked.encrypt)? { options.encrypted() } else { options };
    file(asked.file_directory, asked.file_bytes, |file| match file {
        Some((directory, limit)) => Ok(options.file_in(directory, limit)),
        None => {
            none_of(&[
                ("encrypt without file_directory", asked.encrypt),
                ("cache without file_directory", asked.cache.id),
            ])?;
            Ok(options)
        }
    })?
}

/// The caller's places for a pin, and for the address and length of the pinned bytes.
struct Wanted<P> {
    address: Out<P>,
    len_bytes: Out<usize>,
    pin: Out<glebe_swap_pin>,
}

impl<P> Wanted<P> {
    /// Refuses null for the address or the pin, before anything changes.
    fn new(
        address: Out<P>,
        len_bytes: Out<usize>,
        pin: Out<glebe_swap_pin>,
    ) -> Result<Self, Failure> {
        let (address, pin) = (address.checked("address")?, pin.checked("pin")?);
        Ok(Self { address, len_bytes, pin })
    }

    fn set(self, make: impl FnOnce() -> Result<New<P>, SwapError>) -> Result<c_int, Failure> {
        let mut bytes = None;
        let handle = insert(Process::create()?, || {
            let New { pin, address, len } = make()?;
            bytes = Some((address, len));
            Ok([pin])
        })?;
        if let Some((address, len)) = bytes {
            self.address.set(address);
            self.len_bytes.set(len);
        }
        Ok(self.pin.set(handle))
    }
}

#[no_mangle]
pub extern "C" fn glebe_swap_pin_free(pin: glebe_swap_pin) -> c_int {
    call(|| end(pin))
}

/// Ends a store or a region. Refuses one that has pins.
fn end_unpinned<H, T: 'static>(handle: H) -> Result<c_int, Failure>
where
    H: Handle<LANES, Object = Arc<Pinnable<T>>>,
{
    let (_, mut held) = hold(handle)?;
    let pins = held.get().map_or(0, |of| of.pins());
    if pins > 0 {
        let text = format!("the {} still has {pins} pins; free them first", H::KIND.name);
        return Err(Failure::new(GLEBE_ERROR_BUSY, text));
    }
    let ended = held.take();
    drop(held);
    drop(ended);
    Ok(GLEBE_OK)
}

fn formed(format: u64, stats: &Stats) -> Result<String, Failure> {
    form(format, stats, Stats::to_json, Stats::to_openmetrics)
}
