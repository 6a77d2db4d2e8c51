//! Stores: objects by number, pinned while they are used.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};

use glebe::internal::{key_from_raw, key_to_raw, object_len};
use glebe::swap::cache::SwapCache;
use glebe::swap::{Key, Store, SwapError};
use glebe::units::Bytes;

use super::{end_unpinned, formed, options, Wanted};
use crate::abi::*;
use crate::boundary::{call, In, Out, Text};
use crate::failure::Failure;
use crate::pinned::{self, Pinnable};
use crate::process::{each, insert, with, Of, Process};

fn key(object: glebe_swap_object) -> Result<Key, SwapError> {
    let store = u32::try_from(object.store).map_err(|_| SwapError::Foreign)?;
    Ok(key_from_raw(store, object.id))
}

fn object(key: Key) -> glebe_swap_object {
    let (store, id) = key_to_raw(key);
    glebe_swap_object { id, store: store.into() }
}

fn on<R>(
    store: glebe_swap_store,
    call: impl FnOnce(&Store) -> Result<R, SwapError>,
) -> Result<R, Failure> {
    with(store, |of| Ok(call(&of.of)?))
}

/// Calls `call` on an object, as [`on`] does on a store.
fn on_object(
    store: glebe_swap_store,
    object: glebe_swap_object,
    call: fn(&Store, Key) -> Result<(), SwapError>,
) -> Result<c_int, Failure> {
    on(store, |of| call(of, key(object)?))?;
    Ok(GLEBE_OK)
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_new(
    budget_bytes: u64,
    options: In<glebe_swap_options>,
    store: Out<glebe_swap_store>,
) -> c_int {
    call(|| {
        let (out, asked) = (store.checked("store")?, options.read()?);
        let (process, options) = (Process::create()?, self::options(&asked)?);
        let budget = Bytes::new(budget_bytes);
        if asked.cache == glebe_swap_cache::default() {
            let make = || Ok(each(Pinnable::new(options.build(budget)?)));
            return Ok(out.set(insert(process, make)?));
        }
        let cached = |cache: &Of<SwapCache>| {
            let make = || {
                let store = options.cached_in(&cache.object).build(budget)?;
                Ok(each(Pinnable::in_reserve(cache.reserve, store)))
            };
            insert(process, make)
        };
        Ok(out.set(with(asked.cache, cached)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_free(store: glebe_swap_store) -> c_int {
    call(|| end_unpinned(store))
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_insert(
    store: glebe_swap_store,
    bytes: In<c_void>,
    len_bytes: usize,
    object: Out<glebe_swap_object>,
) -> c_int {
    call(|| {
        let out = object.checked("object")?;
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        Ok(out.set(self::object(on(store, |of| of.insert(bytes))?)))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_create(
    store: glebe_swap_store,
    len_bytes: usize,
    object: Out<glebe_swap_object>,
    address: Out<*mut c_void>,
    pin: Out<glebe_swap_pin>,
) -> c_int {
    call(|| {
        let out = object.checked("object")?;
        let wanted = Wanted::new(address, Out::nowhere(), pin)?;
        let mut key = None;
        let create = |of: &'static Store| of.create(len_bytes).inspect(|new| key = Some(new.key()));
        with(store, |of| wanted.set(|| pinned::write(of, create)))?;
        Ok(key.map_or(GLEBE_OK, |key| out.set(self::object(key))))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_pin(
    store: glebe_swap_store,
    object: glebe_swap_object,
    address: Out<*const c_void>,
    len_bytes: Out<usize>,
    pin: Out<glebe_swap_pin>,
) -> c_int {
    call(|| {
        let (wanted, key) = (Wanted::new(address, len_bytes, pin)?, key(object)?);
        with(store, |of| wanted.set(|| pinned::read(of, |of| of.pin(key))))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_pin_mut(
    store: glebe_swap_store,
    object: glebe_swap_object,
    address: Out<*mut c_void>,
    len_bytes: Out<usize>,
    pin: Out<glebe_swap_pin>,
) -> c_int {
    call(|| {
        let (wanted, key) = (Wanted::new(address, len_bytes, pin)?, key(object)?);
        with(store, |of| wanted.set(|| pinned::write(of, |of| of.pin_mut(key))))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_take(
    store: glebe_swap_store,
    object: glebe_swap_object,
    mut buffer: Out<c_void>,
    buffer_len_bytes: usize,
    len_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let out = len_bytes.checked("len_bytes")?;
        let key = key(object)?;
        let len = on(store, |of| object_len(of, key))?;
        if buffer_len_bytes < len {
            out.set(len);
            if buffer_len_bytes == 0 {
                return Ok(GLEBE_OK);
            }
            let text = format!("a buffer of {buffer_len_bytes} bytes for an object of {len}");
            return Err(Failure::new(GLEBE_ERROR_BUFFER_TOO_SMALL, text));
        }
        let to = buffer.bytes(len, "buffer")?;
        to.copy_from_slice(&on(store, |of| of.take(key))?);
        Ok(out.set(len))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_remove(
    store: glebe_swap_store,
    object: glebe_swap_object,
) -> c_int {
    call(|| on_object(store, object, Store::free))
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_cold(
    store: glebe_swap_store,
    object: glebe_swap_object,
) -> c_int {
    call(|| on_object(store, object, Store::cold))
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_will_need(
    store: glebe_swap_store,
    object: glebe_swap_object,
) -> c_int {
    call(|| on_object(store, object, Store::will_need))
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_dead(
    store: glebe_swap_store,
    object: glebe_swap_object,
) -> c_int {
    call(|| on_object(store, object, Store::dead))
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_set_budget(store: glebe_swap_store, budget_bytes: u64) -> c_int {
    call(|| {
        on(store, |of| of.set_budget(Bytes::new(budget_bytes)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_set_pool_limit(
    store: glebe_swap_store,
    limit_bytes: u64,
) -> c_int {
    call(|| {
        on(store, |of| of.set_pool_limit(Bytes::new(limit_bytes)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_get_stats(
    store: glebe_swap_store,
    stats: Out<glebe_swap_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&on(store, |of| Ok(of.stats()))?.lines()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_store_format_stats(
    store: glebe_swap_store,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        text.set(formed(format, &on(store, |of| Ok(of.stats()))?)?)
    })
}
