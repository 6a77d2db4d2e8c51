//! Views: pages of the caller's file, mapped side by side.
//!
//! A view has its own range of addresses, so freeing the view unmaps it at once.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use glebe::extent::Extent;
use glebe::page_size;
use glebe::units::Pages;
use glebe::vmap::{MemFile, Space};

use crate::abi::*;
use crate::boundary::{call, Array, In, Out};
use crate::descriptor::{copy_of, refused};
use crate::failure::Failure;
use crate::process::{end, insert, with, Process, Viewed};

#[no_mangle]
pub extern "C" fn glebe_view_new(
    fd: c_int,
    extents: In<glebe_extent>,
    count: usize,
    view: Out<glebe_view>,
) -> c_int {
    call(|| {
        let out = view.checked("view")?;
        let asked = extents.all(count, "extents")?;
        let file = adopt(fd)?;
        let extents = asked.iter().map(extent_of).collect::<Result<Vec<_>, _>>()?;
        let make = || {
            let pages = extents.iter().fold(0_u64, |sum, one| sum.saturating_add(one.len()));
            let too_long = || Failure::bad("extents: pages in all", pages);
            let len = Pages::new(pages).checked_bytes(page_size()).ok_or_else(too_long)?;
            let options = Space::options().page(file.page());
            let view = options.build(len)?.view(&file, &extents)?;
            Ok([Viewed { view, extents }])
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

fn adopt(fd: c_int) -> Result<Arc<MemFile>, Failure> {
    let file = MemFile::adopt(copy_of(fd)?);
    Ok(Arc::new(file.map_err(|_| refused(fd, "no memfd, and no file in memory"))?))
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
        let (first, len) = with(view, |of| Ok((of.view.as_ptr(), of.view.len())))?;
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
        with(view, |viewed| Ok(out.set(viewed.extents.iter().copied().map(of))))?;
        Ok(GLEBE_OK)
    })
}
