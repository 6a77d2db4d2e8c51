//! Second class: pools of the page cache.
//!
//! # Safety
//! Pointers are what the header says of them: a name ends with a zero byte, a page has as many
//! bytes as its length says, and nobody else writes it meanwhile.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr};

use glebe::reserve::{Error, Namespace, Put, Rejected};

use crate::abi::*;
use crate::boundary::{call, Out};
use crate::failure::Failure;
use crate::process::{Of, Process};
use crate::table::Kind;

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_pool_open(
    reserve: glebe_reserve,
    name: *const c_char,
    pool: *mut glebe_pool,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(pool, "pool")? };
        if name.is_null() {
            return Err(Failure::Null("name"));
        }
        // SAFETY: the caller's duty.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Failure::BadName)?;
        let handle = Process::with_reserve(reserve, |process, of| {
            let make = || Ok(Of { reserve, object: of.page_cache().namespace(name)? });
            Ok(process.handle(process.pools.insert_with("pools", make)?, Kind::Pool))
        })?;
        Ok(out.set(handle))
    })
}

/// Calls `call` on the pool of a handle.
fn with(
    handle: u64,
    call: impl FnOnce(&Namespace) -> Result<c_int, Error>,
) -> Result<c_int, Failure> {
    let (process, key) = Process::find(handle, Kind::Pool)?;
    let answer = process.pools.with(key, |of| call(&of.object));
    Ok(answer.ok_or(Failure::BadHandle { kind: Kind::Pool.name(), handle })??)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_pool_put(
    pool: glebe_pool,
    object: u64,
    index: u64,
    page: *const c_void,
    len_bytes: usize,
) -> c_int {
    call(|| {
        if page.is_null() {
            return Err(Failure::Null("page"));
        }
        with(pool, |pool| {
            let len = check_len(len_bytes)?;
            // SAFETY: the caller's duty.
            let page = unsafe { std::slice::from_raw_parts(page.cast(), len) };
            Ok(match pool.put(object, index, page)? {
                Put::Stored => GLEBE_PUT_STORED,
                Put::Rejected(Rejected::Recalled) => GLEBE_PUT_RECALLED,
                Put::Rejected(Rejected::Busy) => GLEBE_PUT_BUSY,
                Put::Rejected(_) => GLEBE_PUT_FULL,
            })
        })
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_pool_get(
    pool: glebe_pool,
    object: u64,
    index: u64,
    page: *mut c_void,
    len_bytes: usize,
) -> c_int {
    call(|| {
        if page.is_null() {
            return Err(Failure::Null("page"));
        }
        with(pool, |pool| {
            let len = check_len(len_bytes)?;
            // SAFETY: the caller's duty. Bytes that C has not set are bytes to Rust: they come
            // from a call that the compiler cannot see into.
            let page = unsafe { std::slice::from_raw_parts_mut(page.cast(), len) };
            Ok(if pool.get(object, index, page)? { GLEBE_GET_HIT } else { GLEBE_GET_MISS })
        })
    })
}

/// Refuses a length that is not a page's before a slice of it is made.
fn check_len(len_bytes: usize) -> Result<usize, Error> {
    let page = glebe::sys::page_size().bytes();
    if len_bytes as u64 != page.get() {
        return Err(Error::BadPageLen { given: len_bytes, page });
    }
    Ok(len_bytes)
}

#[no_mangle]
pub extern "C" fn glebe_pool_invalidate_page(pool: glebe_pool, object: u64, index: u64) -> c_int {
    call(|| {
        with(pool, |pool| {
            let found = pool.invalidate_page(object, index)?;
            Ok(if found { GLEBE_INVALIDATED } else { GLEBE_NOT_THERE })
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_pool_invalidate_object(pool: glebe_pool, object: u64) -> c_int {
    call(|| with(pool, |pool| pool.invalidate_object(object).map(|()| GLEBE_OK)))
}

#[no_mangle]
pub extern "C" fn glebe_pool_invalidate(pool: glebe_pool) -> c_int {
    call(|| with(pool, |pool| pool.invalidate_all().map(|()| GLEBE_OK)))
}

#[no_mangle]
pub extern "C" fn glebe_pool_close(pool: glebe_pool) -> c_int {
    call(|| {
        let (process, key) = Process::find(pool, Kind::Pool)?;
        let unknown = Failure::BadHandle { kind: Kind::Pool.name(), handle: pool };
        process.pools.remove_if(key, || Ok(())).unwrap_or(Err(unknown))?;
        Ok(GLEBE_OK)
    })
}
