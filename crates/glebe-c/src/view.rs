//! Views: first class in pieces, and pages of a file of the caller's, side by side.
//!
//! A view of a file has addresses of its own, so that one that is freed is unmapped then.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use glebe::extent::Extent;
use glebe::sys::{errno, page_size};
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};

use crate::abi::*;
use crate::boundary::{call, Array, In, Out};
use crate::descriptor::copy_of;
use crate::failure::Failure;
use crate::process::{end, insert, insert_in, with, Of, Process, Viewed};

#[no_mangle]
pub extern "C" fn glebe_view_new(
    reserve: glebe_reserve,
    pages: u64,
    view: Out<glebe_view>,
) -> c_int {
    call(|| {
        let out = view.checked("view")?;
        let pages = Pages::new(pages);
        Ok(out.set(insert_in(reserve, |of| Ok([Viewed::Reserve(of.alloc_virtual(pages)?)]))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_view_new_of_file(
    fd: c_int,
    extents: In<glebe_extent>,
    count: usize,
    guard_pages: u64,
    view: Out<glebe_view>,
) -> c_int {
    call(|| {
        let out = view.checked("view")?;
        let asked = extents.all(count, "extents")?;
        let why = "no memfd, and no file in memory";
        let refused = |_| Failure::BadDescriptor { fd, errno: errno::EINVAL, why };
        let file = Arc::new(MemFile::adopt(copy_of(fd)?).map_err(refused)?);
        let extents = asked.iter().map(extent_of).collect::<Result<Vec<_>, _>>()?;
        let make = || {
            let len = space_len(&file, &extents, guard_pages)?;
            let options = Space::options().page(file.page()).guard_pages(Pages::new(guard_pages));
            let object = Viewed::File(options.reserve(len)?.view(&file, &extents)?, extents);
            Ok([Of { reserve: glebe_reserve::default(), object }])
        };
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

fn extent_of(asked: &glebe_extent) -> Result<Extent, Failure> {
    let (start, len) = (asked.start_pages, asked.len_pages);
    Extent::new(start, len).ok_or_else(|| {
        let code = if len == 0 { GLEBE_ERROR_EMPTY } else { GLEBE_ERROR_BEYOND };
        let text = format!("an extent of {len} pages at page {start}: no such pages can be");
        Failure::new(code, text)
    })
}

/// Bytes of addresses for a view of `extents`, which are base pages, and guard pages of the file.
fn space_len(file: &MemFile, extents: &[Extent], guard_pages: u64) -> Result<Bytes, Failure> {
    let pages = extents.iter().fold(0_u64, |sum, extent| sum.saturating_add(extent.len()));
    let guard = Pages::new(guard_pages).checked_bytes(file.page());
    let all = Pages::new(pages).checked_bytes(page_size()).zip(guard);
    let all = all.and_then(|(len, guard)| len.checked_add(guard));
    all.ok_or_else(|| Failure::bad("guard_pages", guard_pages))
}

#[no_mangle]
pub extern "C" fn glebe_view_free(view: glebe_view) -> c_int {
    call(|| end(view))
}

#[no_mangle]
pub extern "C" fn glebe_view_memory(
    view: glebe_view,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let (first, len) = with(view, |of| match &of.object {
            Viewed::Reserve(block) => Ok((block.as_ptr(), block.pages().bytes(page_size()))),
            Viewed::File(view, _) => Ok((view.as_ptr(), view.len())),
        })?;
        address.set(first.cast());
        Ok(len_bytes.set(len.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_view_extents(
    view: glebe_view,
    extents: Out<glebe_extent>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(extents, capacity, count, "extents")?;
        let of = |extent: Extent| glebe_extent::of(&extent);
        with(view, |viewed| match &viewed.object {
            Viewed::Reserve(block) => Ok(out.set(block.extents().map(of))),
            Viewed::File(_, extents) => Ok(out.set(extents.iter().copied().map(of))),
        })?;
        Ok(GLEBE_OK)
    })
}
