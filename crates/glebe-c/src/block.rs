//! Blocks and promises of first-class clients.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};

use glebe::page_size;
use glebe::reserve::Request;
use glebe::units::Pages;

use crate::abi::*;
use crate::boundary::{call, Out};
use crate::failure::Failure;
use crate::process::{end, hold, insert, insert_in, with, Of};

fn alloc(
    reserve: glebe_reserve,
    request: Request,
    block: Out<glebe_block>,
) -> Result<c_int, Failure> {
    let out = block.checked("block")?;
    Ok(out.set(insert_in(reserve, |of| Ok([of.alloc(request)?]))?))
}

#[no_mangle]
pub extern "C" fn glebe_alloc(
    reserve: glebe_reserve,
    pages: u64,
    block: Out<glebe_block>,
) -> c_int {
    call(|| alloc(reserve, Request::new(Pages::new(pages)), block))
}

#[no_mangle]
pub extern "C" fn glebe_alloc_with(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    flags: u64,
    block: Out<glebe_block>,
) -> c_int {
    call(|| {
        if flags & !(GLEBE_ZEROED | GLEBE_ANY | GLEBE_NO_WAIT) != 0 {
            return Err(Failure::bad("flags", flags));
        }
        let mut request = Request::new(Pages::new(pages)).align(Pages::new(align_pages));
        if flags & GLEBE_ZEROED != 0 {
            request = request.zeroed();
        }
        if flags & GLEBE_ANY != 0 {
            request = request.any();
        }
        if flags & GLEBE_NO_WAIT != 0 {
            request = request.no_wait();
        }
        alloc(reserve, request, block)
    })
}

#[no_mangle]
pub extern "C" fn glebe_free(block: glebe_block) -> c_int {
    call(|| end(block))
}

#[no_mangle]
pub extern "C" fn glebe_block_memory(
    block: glebe_block,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let (first, pages) = with(block, |of| Ok((of.object.as_ptr(), of.object.pages())))?;
        address.set(first.cast());
        Ok(len_bytes.set(pages.bytes(page_size()).get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_promise_new(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    promise: Out<glebe_promise>,
) -> c_int {
    call(|| {
        let out = promise.checked("promise")?;
        let request = Request::new(Pages::new(pages)).align(Pages::new(align_pages));
        Ok(out.set(insert_in(reserve, |of| Ok([of.promise(request)?]))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_promise_take(promise: glebe_promise, block: Out<glebe_block>) -> c_int {
    call(|| {
        let out = block.checked("block")?;
        // `held` locks the promise until `insert` has stored the block, so `glebe_reserve_free`
        // finds the promise or the block, and refuses.
        let (process, mut held) = hold(promise)?;
        let make = || {
            let Of { reserve, object } = held.take().ok_or_else(Failure::forked)?;
            Ok([Of { reserve, object: object.take()? }])
        };
        Ok(out.set(insert(process, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_promise_free(promise: glebe_promise) -> c_int {
    call(|| end(promise))
}
