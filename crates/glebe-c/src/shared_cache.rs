//! Shared caches: values by key for all processes of a user.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use glebe::cache::SharedCache;
use glebe::Bytes;

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::Failure;
use crate::process::{each, end, insert, with, Process};

#[no_mangle]
pub extern "C" fn glebe_shared_cache_open(
    name: In<c_char>,
    options: In<glebe_shared_cache_options>,
    cache: Out<glebe_shared_cache>,
) -> c_int {
    call(|| {
        let (out, asked) = (cache.checked("cache")?, options.read()?);
        let name = name.text().ok_or_else(|| Failure::null("name"))?;
        let name = name.to_str().map_err(|_| {
            let text = format!("the name {name:?} is not UTF-8");
            Failure::new(GLEBE_ERROR_BAD_ARGUMENT, text)
        })?;
        let mut wanted = SharedCache::options();
        if asked.cache_bytes != 0 {
            wanted = wanted.size(Bytes::new(asked.cache_bytes));
        }
        if let Some(socket) = In::member(asked.socket).path() {
            wanted = wanted.socket(socket);
        }
        if let Some(folder) = In::member(asked.folder).path() {
            wanted = wanted.folder(folder);
        }
        let open = || Ok(each(Arc::new(wanted.open(name)?)));
        Ok(out.set(insert(Process::create()?, open)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_free(cache: glebe_shared_cache) -> c_int {
    call(|| end(cache))
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_put(
    cache: glebe_shared_cache,
    key: In<c_void>,
    key_len_bytes: usize,
    value: In<c_void>,
    value_len_bytes: usize,
) -> c_int {
    call(|| {
        let key = key.bytes(key_len_bytes, "key")?;
        let value = value.bytes(value_len_bytes, "value")?;
        match with(cache, |of| Ok(of.put(key, value)?))? {
            true => Ok(GLEBE_PUT_STORED),
            false => Ok(GLEBE_PUT_FULL),
        }
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_get(
    cache: glebe_shared_cache,
    key: In<c_void>,
    key_len_bytes: usize,
    mut buffer: Out<c_void>,
    buffer_len_bytes: usize,
    value_len_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let key = key.bytes(key_len_bytes, "key")?;
        let room = buffer.bytes(buffer_len_bytes, "buffer")?;
        let found = with(cache, |of| {
            Ok(of.lookup(key, |found| {
                let len = found.len();
                let Some(room) = room.get_mut(..len) else { return Some((len, false)) };
                found.copy(room).then_some((len, true))
            }))
        })?;
        value_len_bytes.set(found.map_or(0, |(len, _)| len));
        match found {
            Some((_, true)) => Ok(GLEBE_GET_HIT),
            Some((len, false)) => {
                let text = format!("a value of {len} bytes; the buffer has {buffer_len_bytes}");
                Err(Failure::new(GLEBE_ERROR_BUFFER_TOO_SMALL, text))
            }
            None => Ok(GLEBE_GET_MISS),
        }
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_remove(
    cache: glebe_shared_cache,
    key: In<c_void>,
    key_len_bytes: usize,
) -> c_int {
    call(|| {
        let key = key.bytes(key_len_bytes, "key")?;
        match with(cache, |of| Ok(of.remove(key)))? {
            true => Ok(GLEBE_REMOVE_DONE),
            false => Ok(GLEBE_REMOVE_NONE),
        }
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_limit(
    cache: glebe_shared_cache,
    limit_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let out = limit_bytes.checked("limit_bytes")?;
        Ok(out.set(with(cache, |of| Ok(of.limit() as u64))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_memory(
    cache: glebe_shared_cache,
    len_bytes: Out<u64>,
    of_daemon: Out<u64>,
) -> c_int {
    call(|| {
        let (len, is_of_daemon) = with(cache, |of| Ok((of.size().get(), of.is_of_daemon())))?;
        len_bytes.set(len);
        Ok(of_daemon.set(u64::from(is_of_daemon)))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_cache_end(cache: glebe_shared_cache) -> c_int {
    call(|| {
        with(cache, |of| Ok(of.end()?))?;
        Ok(GLEBE_OK)
    })
}
