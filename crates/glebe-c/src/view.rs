//! Views: first class in pieces, and pages of a file of the caller's, side by side.
//!
//! A view of a file has addresses of its own, so that one that is freed is unmapped then.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`], but for the
//! array of a file's extents, which is read here.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use glebe::extent::Extent;
use glebe::sys::{errno, page_size};
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};

use crate::abi::*;
use crate::boundary::{call, Array, Out};
use crate::failure::Failure;
use crate::process::{Of, Process, Viewed};
use crate::table::{Held, Kind};

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_alloc_virtual(
    reserve: glebe_reserve,
    pages: u64,
    view: *mut glebe_view,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(view, "view")? };
        let handle = Process::with_reserve(reserve, |process, of| {
            let make = || {
                let object = of.alloc_virtual(Pages::new(pages))?;
                Ok(Viewed::Reserve(Of { reserve, object }))
            };
            Ok(process.handle(process.views.insert_with("views", make)?, Kind::View))
        })?;
        Ok(out.set(handle))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_view_of_file(
    fd: c_int,
    extents: *const glebe_extent,
    count: usize,
    guard_pages: u64,
    view: *mut glebe_view,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(view, "view")? };
        if extents.is_null() && count > 0 {
            return Err(Failure::Null("extents"));
        }
        let file = adopt(fd)?;
        let read = |index: usize| {
            // SAFETY: below `count`, for which the caller vouches.
            let glebe_extent { start_pages: start, len_pages: len } =
                unsafe { extents.add(index).read_unaligned() };
            Extent::new(start, len).ok_or(Failure::BadExtent { start, len })
        };
        let extents: Vec<Extent> = (0..count).map(read).collect::<Result<_, _>>()?;
        let process = Process::create()?;
        let make = || {
            let len = space_len(&file, &extents, guard_pages)?;
            let options = Space::options().page(file.page()).guard_pages(Pages::new(guard_pages));
            let view = options.build(len)?.view(&file, &extents)?;
            Ok(Viewed::File(view, extents))
        };
        let key = process.views.insert_with("views", make)?;
        Ok(out.set(process.handle(key, Kind::View)))
    })
}

/// The file of a descriptor, which stays the caller's.
fn adopt(fd: c_int) -> Result<Arc<MemFile>, Failure> {
    let refused = |errno, why| Failure::BadDescriptor { fd, errno, why };
    if fd < 0 {
        return Err(refused(errno::EBADF, "not open"));
    }
    // SAFETY: not -1, and used for one copy, which fails where nothing is open.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    let copy = copy.map_err(|error| match error.raw_os_error() {
        Some(errno::EMFILE) => refused(errno::EMFILE, "no descriptor is free for a copy of it"),
        _ => refused(errno::EBADF, "not open"),
    })?;
    let file = MemFile::adopt(copy);
    Ok(Arc::new(file.map_err(|_| refused(errno::EINVAL, "no memfd, and no file in memory"))?))
}

/// Bytes of addresses for a view of `extents`, which are base pages, and guard pages of the file.
fn space_len(file: &MemFile, extents: &[Extent], guard_pages: u64) -> Result<Bytes, Failure> {
    let pages = extents.iter().fold(0_u64, |sum, extent| sum.saturating_add(extent.len()));
    let guard = Pages::new(guard_pages).checked_bytes(file.page());
    let all = Pages::new(pages).checked_bytes(page_size()).zip(guard);
    let all = all.and_then(|(len, guard)| len.checked_add(guard));
    all.ok_or(Failure::BadArgument { name: "guard_pages", value: guard_pages })
}

/// The view of a handle, held.
fn hold(view: u64) -> Result<Held<'static, Viewed>, Failure> {
    let (process, key) = Process::find(view, Kind::View)?;
    let unknown = Failure::BadHandle { kind: Kind::View.name(), handle: view };
    process.views.hold(key).ok_or(unknown)
}

/// Calls `look` on a view.
fn look<R>(view: u64, look: impl FnOnce(&Viewed) -> R) -> Result<R, Failure> {
    let held = hold(view)?;
    let unknown = Failure::BadHandle { kind: Kind::View.name(), handle: view };
    held.get().map(look).ok_or(unknown)
}

#[no_mangle]
pub extern "C" fn glebe_view_free(view: glebe_view) -> c_int {
    call(|| {
        let mut held = hold(view)?;
        let freed = held.take();
        // The handle's place is given back before the pages: nobody waits for it meanwhile.
        drop(held);
        drop(freed);
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_view_address(view: glebe_view, address: *mut *mut c_void) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(address, "address")? };
        let address = look(view, |viewed| match viewed {
            Viewed::Reserve(of) => of.object.as_ptr(),
            Viewed::File(view, _) => view.as_ptr(),
        })?;
        Ok(out.set(address.cast()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_view_len(view: glebe_view, len_bytes: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        let len = look(view, |viewed| match viewed {
            Viewed::Reserve(of) => of.object.pages().bytes(page_size()),
            Viewed::File(view, _) => view.len(),
        })?;
        Ok(out.set(len.get()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_view_extents(
    view: glebe_view,
    extents: *mut glebe_extent,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Array::new(extents, capacity, count, "extents")? };
        let of =
            |extent: Extent| glebe_extent { start_pages: extent.start(), len_pages: extent.len() };
        look(view, |viewed| match viewed {
            Viewed::Reserve(object) => out.set(object.object.extents().map(of)),
            Viewed::File(_, extents) => out.set(extents.iter().copied().map(of)),
        })
    })
}
