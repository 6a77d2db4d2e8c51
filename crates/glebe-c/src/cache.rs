//! The page cache of second-class clients.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};

use glebe::page_size;
use glebe::reserve::{Put, Rejected, ReserveError};

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::Failure;
use crate::process::{each, end, insert_in, on};

#[no_mangle]
pub extern "C" fn glebe_cache_new(
    reserve: glebe_reserve,
    name: In<c_char>,
    cache: Out<glebe_cache>,
) -> c_int {
    call(|| {
        let out = cache.checked("cache")?;
        let name = name.text().ok_or_else(|| Failure::null("name"))?.to_str();
        let name =
            name.map_err(|_| Failure::new(GLEBE_ERROR_BAD_ARGUMENT, "a name not in UTF-8"))?;
        Ok(out.set(insert_in(reserve, |of| Ok(each(of.page_cache().namespace(name)?)))?))
    })
}

fn check_len(len_bytes: usize) -> Result<(), Failure> {
    let page = page_size().bytes();
    if len_bytes as u64 != page.get() {
        return Err(ReserveError::BadPageLen { given: len_bytes, page }.into());
    }
    Ok(())
}

#[no_mangle]
pub extern "C" fn glebe_cache_put(
    cache: glebe_cache,
    object: u64,
    index: u64,
    page: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        check_len(len_bytes)?;
        let page = page.bytes(len_bytes, "page")?;
        on(cache, |cache| cache.put(object, index, page)).map(put)
    })
}

fn put(how: Put) -> c_int {
    match how {
        Put::Stored => GLEBE_PUT_STORED,
        Put::Rejected(Rejected::Recalled) => GLEBE_PUT_RECALLED,
        Put::Rejected(Rejected::Busy) => GLEBE_PUT_BUSY,
        Put::Rejected(_) => GLEBE_PUT_FULL,
    }
}

#[no_mangle]
pub extern "C" fn glebe_cache_get(
    cache: glebe_cache,
    object: u64,
    index: u64,
    mut page: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        check_len(len_bytes)?;
        let page = page.bytes(len_bytes, "page")?;
        on(cache, |cache| cache.get(object, index, page)).map(got)
    })
}

fn got(is_hit: bool) -> c_int {
    if is_hit {
        GLEBE_GET_HIT
    } else {
        GLEBE_GET_MISS
    }
}

#[no_mangle]
pub extern "C" fn glebe_cache_put_run(
    cache: glebe_cache,
    object: u64,
    first: u64,
    bytes: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        on(cache, |cache| cache.put_run(object, first, bytes)).map(put)
    })
}

#[no_mangle]
pub extern "C" fn glebe_cache_get_run(
    cache: glebe_cache,
    object: u64,
    first: u64,
    mut bytes: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        on(cache, |cache| cache.get_run(object, first, bytes)).map(got)
    })
}

#[no_mangle]
pub extern "C" fn glebe_cache_invalidate_page(
    cache: glebe_cache,
    object: u64,
    index: u64,
) -> c_int {
    call(|| {
        let found = on(cache, |cache| cache.invalidate_page(object, index))?;
        Ok(if found { GLEBE_INVALIDATED } else { GLEBE_NOT_THERE })
    })
}

#[no_mangle]
pub extern "C" fn glebe_cache_invalidate_object(cache: glebe_cache, object: u64) -> c_int {
    call(|| on(cache, |cache| cache.invalidate_object(object).map(|()| GLEBE_OK)))
}

#[no_mangle]
pub extern "C" fn glebe_cache_invalidate(cache: glebe_cache) -> c_int {
    call(|| on(cache, |cache| cache.invalidate_all().map(|()| GLEBE_OK)))
}

#[no_mangle]
pub extern "C" fn glebe_cache_free(cache: glebe_cache) -> c_int {
    call(|| end(cache))
}
