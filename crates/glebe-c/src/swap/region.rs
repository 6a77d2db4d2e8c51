//! Swap regions: memory by address, resident up to a budget.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};

use glebe::swap::{Region, SwapError};
use glebe::units::Bytes;

use super::{end_unpinned, formed, options, Wanted};
use crate::abi::*;
use crate::boundary::{call, In, Out, Text};
use crate::failure::{none_of, Failure};
use crate::pinned::{self, Pinnable};
use crate::process::{each, insert, with, Process};

fn on<R>(
    region: glebe_swap_region,
    call: impl FnOnce(&Region) -> Result<R, SwapError>,
) -> Result<R, Failure> {
    with(region, |of| Ok(call(&of.of)?))
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_new(
    len_bytes: u64,
    budget_bytes: u64,
    options: In<glebe_swap_options>,
    region: Out<glebe_swap_region>,
) -> c_int {
    call(|| {
        let (out, asked) = (region.checked("region")?, options.read()?);
        none_of(&[
            ("capacity_bytes of a region", asked.capacity_bytes),
            ("cache of a region", asked.cache.id),
        ])?;
        let options = self::options(&asked)?;
        let (len, budget) = (Bytes::new(len_bytes), Bytes::new(budget_bytes));
        let make = || Ok(each(Pinnable::new(options.build_region(len, budget)?)));
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_free(region: glebe_swap_region) -> c_int {
    call(|| end_unpinned(region))
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_memory(
    region: glebe_swap_region,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
    moves_pages: Out<u64>,
) -> c_int {
    call(|| {
        on(region, |of| {
            address.set(of.as_ptr().cast());
            len_bytes.set(of.len().get());
            Ok(moves_pages.set(of.moves_pages().into()))
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_resident(
    region: glebe_swap_region,
    offset_bytes: u64,
    len_bytes: u64,
    address: Out<*mut c_void>,
    pin: Out<glebe_swap_pin>,
) -> c_int {
    call(|| {
        let wanted = Wanted::new(address, Out::nowhere(), pin)?;
        let (offset, len) = (Bytes::new(offset_bytes), Bytes::new(len_bytes));
        let make = |of: &_| wanted.set(|| pinned::resident(of, |of| of.resident(offset, len)));
        with(region, make)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_read(
    region: glebe_swap_region,
    offset_bytes: u64,
    mut buffer: Out<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let to = buffer.bytes(len_bytes, "buffer")?;
        on(region, |of| of.read_at(Bytes::new(offset_bytes), to))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_write(
    region: glebe_swap_region,
    offset_bytes: u64,
    bytes: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        let from = bytes.bytes(len_bytes, "bytes")?;
        on(region, |of| of.write_at(Bytes::new(offset_bytes), from))?;
        Ok(GLEBE_OK)
    })
}

fn on_part(
    region: glebe_swap_region,
    offset_bytes: u64,
    len_bytes: u64,
    call: fn(&Region, Bytes, Bytes) -> Result<(), SwapError>,
) -> Result<c_int, Failure> {
    on(region, |of| call(of, Bytes::new(offset_bytes), Bytes::new(len_bytes)))?;
    Ok(GLEBE_OK)
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_cold(
    region: glebe_swap_region,
    offset_bytes: u64,
    len_bytes: u64,
) -> c_int {
    call(|| on_part(region, offset_bytes, len_bytes, Region::cold))
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_will_need(
    region: glebe_swap_region,
    offset_bytes: u64,
    len_bytes: u64,
) -> c_int {
    call(|| on_part(region, offset_bytes, len_bytes, Region::will_need))
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_discard(
    region: glebe_swap_region,
    offset_bytes: u64,
    len_bytes: u64,
) -> c_int {
    call(|| on_part(region, offset_bytes, len_bytes, Region::discard))
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_arm_thread(region: glebe_swap_region) -> c_int {
    call(|| {
        on(region, Region::arm_thread)?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_set_budget(
    region: glebe_swap_region,
    budget_bytes: u64,
) -> c_int {
    call(|| {
        on(region, |of| of.set_budget(Bytes::new(budget_bytes)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_get_stats(
    region: glebe_swap_region,
    stats: Out<glebe_swap_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&on(region, |of| Ok(of.stats()))?.lines()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_swap_region_format_stats(
    region: glebe_swap_region,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        text.set(formed(format, &on(region, |of| Ok(of.stats()))?)?)
    })
}
