//! Exports swap caches and their areas. An area holds pages of the caller's own pager, by index.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use glebe::page_size;
use glebe::swap::cache::{Area, Stats, SwapCache};
use glebe::swap::SwapError;
use glebe::units::{Bytes, Pages};

use super::file;
use crate::abi::*;
use crate::boundary::{call, In, Out, Text};
use crate::failure::{none_of, Failure};
use crate::process::{each, end, insert, insert_in, on, with, Of, Process};
use crate::stats::form;
use crate::zpool::codec;

#[no_mangle]
pub extern "C" fn glebe_swap_cache_new(
    options: In<glebe_swap_cache_options>,
    cache: Out<glebe_swap_cache>,
) -> c_int {
    call(|| {
        let (out, asked) = (cache.checked("cache")?, options.read()?);
        let codec = codec(asked.codec, asked.zstd_level)?;
        let encrypts = Failure::flag("encrypt", asked.encrypt)?;
        let finish = |cache: SwapCache| match encrypts {
            true => cache.codec(codec).encrypted(),
            false => cache.codec(codec),
        };
        if asked.reserve != glebe_reserve::default() {
            none_of(&[("limit_bytes with a reserve", asked.limit_bytes)])?;
            let make = |of: &_| Ok(each(finish(SwapCache::on(of)?)));
            return Ok(out.set(insert_in(asked.reserve, make)?));
        }
        if asked.limit_bytes == 0 {
            return Err(Failure::bad("limit_bytes without a reserve", 0));
        }
        let limit = Bytes::new(asked.limit_bytes);
        let make = || {
            let object = finish(SwapCache::with_limit(limit)?);
            Ok(each(Of { reserve: asked.reserve, object }))
        };
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_cache_free(cache: glebe_swap_cache) -> c_int {
    call(|| end(cache))
}

#[no_mangle]
pub extern "C" fn glebe_swap_cache_usual_write_back(
    cache: glebe_swap_cache,
    write_back_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let out = write_back_bytes.checked("write_back_bytes")?;
        with(cache, |of| Ok(out.set(of.object.usual_write_back().get())))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_new(
    cache: glebe_swap_cache,
    pages: u64,
    options: In<glebe_swap_area_options>,
    area: Out<glebe_swap_area>,
) -> c_int {
    call(|| {
        let (out, asked) = (area.checked("area")?, options.read()?);
        let (process, pages) = (Process::create()?, Pages::new(pages));
        let new = |of: &Of<SwapCache>| {
            let made = file(asked.file_directory, asked.file_bytes, |file| match file {
                Some((directory, limit)) => of.object.area(pages, directory, limit),
                None => of.object.area_without_file(pages),
            })?;
            Ok(each(Of { reserve: of.reserve, object: Arc::new(made?) }))
        };
        Ok(out.set(with(cache, |of| insert(process, || new(of)))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_free(area: glebe_swap_area) -> c_int {
    call(|| end(area))
}

/// Refuses a length that is not 1 to `most` whole pages.
fn check_len(len: usize, most: u64) -> Result<(), Failure> {
    let page = page_size().bytes();
    let whole = len as u64 % page.get() == 0 && len > 0 && len as u64 / page.get() <= most;
    whole.then_some(()).ok_or_else(|| SwapError::NotAPage { len, page }.into())
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_store(
    area: glebe_swap_area,
    first: u64,
    bytes: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        check_len(len_bytes, u64::MAX)?;
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        let pages = bytes.chunks_exact(page_size().bytes().as_usize());
        on(area, |of: &Arc<Area>| {
            let (count, limit) = (pages.len() as u64, of.pages().get());
            if first.checked_add(count).is_none_or(|end| end > limit) {
                let offset = first.saturating_add(count - 1);
                return Err(SwapError::Offset { offset, pages: of.pages() });
            }
            of.store_all((first..).zip(pages))
        })?;
        Ok(GLEBE_OK)
    })
}

fn copy_out(
    area: glebe_swap_area,
    page: &mut Out<c_void>,
    len_bytes: usize,
    how: impl FnOnce(&Area, &mut [u8]) -> Result<bool, SwapError>,
) -> Result<c_int, Failure> {
    check_len(len_bytes, 1)?;
    let to = page.bytes(len_bytes, "page")?;
    let found = on(area, |of: &Arc<Area>| how(of, to))?;
    Ok(if found { GLEBE_GET_HIT } else { GLEBE_GET_MISS })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_load(
    area: glebe_swap_area,
    index: u64,
    mut page: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| copy_out(area, &mut page, len_bytes, |of, to| of.load(index, to)))
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_take(
    area: glebe_swap_area,
    index: u64,
    mut page: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| copy_out(area, &mut page, len_bytes, |of, to| of.take(index, to)))
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_invalidate_page(area: glebe_swap_area, index: u64) -> c_int {
    call(|| {
        let found = on(area, |of: &Arc<Area>| of.invalidate_page(index))?;
        Ok(if found { GLEBE_INVALIDATED } else { GLEBE_NOT_THERE })
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_invalidate(area: glebe_swap_area, pages: Out<u64>) -> c_int {
    call(|| Ok(pages.set(on(area, |of: &Arc<Area>| of.invalidate_area())?.get())))
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_set_write_back(
    area: glebe_swap_area,
    write_back_bytes: u64,
) -> c_int {
    call(|| {
        on(area, |of: &Arc<Area>| of.set_write_back(Bytes::new(write_back_bytes)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_set_put_back(
    area: glebe_swap_area,
    put_back_bytes: u64,
) -> c_int {
    call(|| {
        on(area, |of: &Arc<Area>| of.set_put_back(Bytes::new(put_back_bytes)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_get_stats(
    area: glebe_swap_area,
    stats: Out<glebe_swap_area_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(area, |of| Ok(of.object.stats().lines()))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_area_format_stats(
    area: glebe_swap_area,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        let stats = with(area, |of| Ok(of.object.stats()))?;
        text.set(form(format, &stats, Stats::to_json, Stats::to_openmetrics)?)
    })
}
