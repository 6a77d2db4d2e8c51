//! First class: blocks and promises.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use glebe::reserve::{Contiguity, Request};
use glebe::units::{PageSize, Pages};

use crate::abi::*;
use crate::boundary::{call, Out};
use crate::failure::Failure;
use crate::process::{Of, Process};
use crate::table::{Held, Key, Kind};

fn alloc(reserve: u64, request: Request, block: Out<u64>) -> Result<c_int, Failure> {
    let handle = Process::with_reserve(reserve, |process, of| {
        let make = || Ok(Of { reserve, object: of.alloc(request)? });
        Ok(process.handle(process.blocks.insert_with("blocks", make)?, Kind::Block))
    })?;
    Ok(block.set(handle))
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_alloc(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    block: *mut glebe_block,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(block, "block")? };
        alloc(reserve, Request::new(Pages::new(pages)).align(Pages::new(align_pages)), out)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_try_alloc(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    block: *mut glebe_block,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(block, "block")? };
        let request = Request::new(Pages::new(pages)).align(Pages::new(align_pages));
        alloc(reserve, request.no_wait(), out)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_alloc_with(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    flags: u64,
    block: *mut glebe_block,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(block, "block")? };
        if flags & !(GLEBE_ZEROED | GLEBE_ANY | GLEBE_NO_WAIT) != 0 {
            return Err(Failure::BadArgument { name: "flags", value: flags });
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
        alloc(reserve, request, out)
    })
}

/// The block of a handle, held.
fn hold(block: u64) -> Result<Held<'static, Of<glebe::reserve::Block>>, Failure> {
    let (process, key) = Process::find(block, Kind::Block)?;
    let unknown = Failure::BadHandle { kind: Kind::Block.name(), handle: block };
    process.blocks.hold(key).ok_or(unknown)
}

#[no_mangle]
pub extern "C" fn glebe_free(block: glebe_block) -> c_int {
    call(|| {
        let mut held = hold(block)?;
        let freed = held.take();
        // The handle's place is given back before the pages: nobody waits for it meanwhile.
        drop(held);
        drop(freed);
        Ok(GLEBE_OK)
    })
}

/// Calls `look` on a block.
fn look<R>(block: u64, look: impl FnOnce(&glebe::reserve::Block) -> R) -> Result<R, Failure> {
    let held = hold(block)?;
    let unknown = Failure::BadHandle { kind: Kind::Block.name(), handle: block };
    held.get().map(|of| look(&of.object)).ok_or(unknown)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_block_address(
    block: glebe_block,
    address: *mut *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(address, "address")? };
        Ok(out.set(look(block, |block| block.as_ptr())?.cast()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_block_len(block: glebe_block, len_bytes: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        let page: PageSize = glebe::sys::page_size();
        Ok(out.set(look(block, |block| block.pages().bytes(page))?.get()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_block_contiguity(
    block: glebe_block,
    contiguity: *mut c_int,
    grain_pages: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(contiguity, "contiguity")? };
        // SAFETY: the caller's duty; null is allowed here.
        let grain = unsafe { Out::new(grain_pages, "grain_pages") };
        let (known, pages) = match look(block, |block| (block.contiguity(), block.pages()))? {
            (Contiguity::Proved, pages) => (GLEBE_PROVED, pages),
            (Contiguity::WithinGrain(pages), _) => (GLEBE_WITHIN_GRAIN, pages),
            // What a later version may add is no more than this to a caller of this one.
            (_, _) => (GLEBE_VIRTUAL_ONLY, Pages::new(1)),
        };
        if let Ok(grain) = grain {
            grain.set(pages.get());
        }
        Ok(out.set(known))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_promise_make(
    reserve: glebe_reserve,
    pages: u64,
    align_pages: u64,
    promise: *mut glebe_promise,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(promise, "promise")? };
        let (pages, align) = (Pages::new(pages), Pages::new(align_pages));
        let handle = Process::with_reserve(reserve, |process, of| {
            let make = || Ok(Of { reserve, object: of.promise(Request::new(pages).align(align))? });
            Ok(process.handle(process.promises.insert_with("promises", make)?, Kind::Promise))
        })?;
        Ok(out.set(handle))
    })
}

fn find_promise(promise: u64) -> Result<(&'static Process, Key, Failure), Failure> {
    let (process, key) = Process::find(promise, Kind::Promise)?;
    Ok((process, key, Failure::BadHandle { kind: Kind::Promise.name(), handle: promise }))
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_promise_take(
    promise: glebe_promise,
    block: *mut glebe_block,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(block, "block")? };
        let (process, key, unknown) = find_promise(promise)?;
        // Held until the block has its place, so that a reserve is at no time without either.
        let Some(mut held) = process.promises.hold(key) else { return Err(unknown) };
        let make = || {
            let Some(Of { reserve, object }) = held.take() else { return Err(unknown) };
            Ok(Of { reserve, object: object.take()? })
        };
        let key = process.blocks.insert_with("blocks", make)?;
        Ok(out.set(process.handle(key, Kind::Block)))
    })
}

#[no_mangle]
pub extern "C" fn glebe_promise_drop(promise: glebe_promise) -> c_int {
    call(|| {
        let (process, key, unknown) = find_promise(promise)?;
        let Some(mut held) = process.promises.hold(key) else { return Err(unknown) };
        let dropped = held.take();
        drop(held);
        drop(dropped);
        Ok(GLEBE_OK)
    })
}
