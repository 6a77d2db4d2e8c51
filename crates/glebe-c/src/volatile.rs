//! Volatile memory: regions, marks, unmarks and reads.
//!
//! # Safety
//! The caller vouches for the memory that it passes. A `Claim` keeps other regions off the memory.
#![allow(unsafe_code)]

mod adopted;
mod claims;
mod pin;
mod reclaim;
mod regions;
mod shared;
mod v10;
mod vrange;

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::time::Duration;

use glebe::extent::Extent;
use glebe::page_size;
use glebe::reclaim::Part;
use glebe::units::Bytes;
use glebe::volatile::{Engine, Error, Options, Priority, Region};

use crate::abi::*;
use crate::boundary::{call, Array, In, Out};
use crate::failure::Failure;
pub(crate) use claims::Inside;
use claims::{range, whole_pages, Claim};
use regions::{end, follow_forks, insert, with};
pub(crate) use shared::shared_part;

fn options(asked: &glebe_volatile_options) -> Result<Options, Failure> {
    let mut options = match asked.engine {
        GLEBE_ENGINE_AUTO => Region::options(),
        GLEBE_ENGINE_SCAN => Region::options().engine(Engine::Scan),
        GLEBE_ENGINE_TAG => Region::options().engine(Engine::Tag),
        other => return Err(Failure::bad("engine", other)),
    };
    options = options.huge(Failure::flag("huge", asked.huge)?);
    if asked.cap_bytes > 0 {
        options = options.cap(Bytes::new(asked.cap_bytes));
    }
    if asked.max_age_ns > 0 {
        options = options.max_age(Duration::from_nanos(asked.max_age_ns));
    }
    let data = asked.data.map_or(std::ptr::null_mut(), |data| data.as_ptr());
    Ok(match asked.refill {
        // SAFETY: the caller vouches for `refill` and its data.
        Some(refill) => unsafe { options.on_lost(refill, data.cast_const().cast()) },
        None => options,
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_new(
    len_bytes: u64,
    options: In<glebe_volatile_options>,
    region: Out<glebe_volatile>,
) -> c_int {
    call(|| {
        let (out, asked) = (region.checked("region")?, options.read()?);
        let (options, len) = (self::options(&asked)?, Bytes::new(len_bytes));
        follow_forks()?;
        let Some(address) = asked.address else {
            return Ok(out.set(insert(None, || Ok(options.build(len)?))?));
        };
        let address = address.as_ptr();
        let claim = Claim::new(whole_pages(address.addr(), len_bytes)?)?;
        // SAFETY: the caller vouches for the memory, and the claim keeps other regions off it.
        let over = || Ok(unsafe { options.build_over(address.cast(), len)? });
        Ok(out.set(insert(Some(claim), over)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_free(region: glebe_volatile) -> c_int {
    call(|| end(region).map(|()| GLEBE_OK))
}

/// Returns the region's marked memory as a reclaimer's [`Part`], which does not keep the region
/// alive.
pub(crate) fn part(region: glebe_volatile) -> Result<Part, Failure> {
    with(region, |of| Ok(Part::from(&of.region)))
}

#[no_mangle]
pub extern "C" fn glebe_volatile_memory(
    region: glebe_volatile,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
    granule_bytes: Out<u64>,
    engine: Out<u64>,
) -> c_int {
    call(|| {
        with(region, |of| {
            address.set(of.region.as_ptr().cast());
            len_bytes.set(of.region.len().get());
            granule_bytes.set(of.region.granule().get());
            Ok(engine.set(match of.region.engine() {
                Engine::Scan => GLEBE_ENGINE_SCAN,
                Engine::Tag => GLEBE_ENGINE_TAG,
            }))
        })
    })
}

fn priority(given: u64) -> Result<Priority, Failure> {
    let known = u8::try_from(given).ok().and_then(Priority::new);
    known.ok_or_else(|| Failure::bad("priority", given))
}

#[no_mangle]
pub extern "C" fn glebe_volatile_mark(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    priority: u64,
) -> c_int {
    call(|| {
        let (known, range) = (self::priority(priority)?, range(offset_bytes, len_bytes)?);
        with(region, |of| Ok(of.region.mark(range, known)?))?;
        Ok(GLEBE_OK)
    })
}

fn pages_of(range: &Range<Bytes>) -> Result<Extent, Failure> {
    let page = page_size();
    let (start, end) = (range.start.pages_down(page).get(), range.end.pages_up(page).get());
    Ok(Extent::new(start, end - start).ok_or(Error::Empty)?)
}

/// Writes runs of lost pages to `out`. Returns `GLEBE_UNMARK_MORE` if `out` has too little room.
fn told(out: Array<glebe_extent>, capacity: usize, all: &[Extent]) -> c_int {
    match out.set(all.iter().map(glebe_extent::of)) {
        count if count > capacity => GLEBE_UNMARK_MORE,
        _ => GLEBE_UNMARK_TOLD,
    }
}

#[no_mangle]
pub extern "C" fn glebe_volatile_unmark(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    runs: Out<glebe_extent>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(runs, capacity, count, "runs")?;
        let range = range(offset_bytes, len_bytes)?;
        let pages = pages_of(&range)?;
        with(region, |of| {
            let found = of.region.unmark(range)?;
            Ok(told(out, capacity, &of.untold.tell(pages, found.runs(), capacity)))
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_drop_now(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    dropped_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let range = range(offset_bytes, len_bytes)?;
        Ok(dropped_bytes.set(with(region, |of| Ok(of.region.drop_now(range)?))?.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_read(
    region: glebe_volatile,
    offset_bytes: u64,
    mut buffer: Out<c_void>,
    len_bytes: usize,
    lost_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let to = buffer.bytes(len_bytes, "buffer")?;
        with(region, |of| match of.region.try_read(Bytes::new(offset_bytes), to) {
            Ok(()) => Ok(GLEBE_READ_DONE),
            Err(Error::Purged { offset }) => {
                lost_bytes.set(offset.get());
                Ok(GLEBE_READ_LOST)
            }
            Err(error) => Err(error.into()),
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_get_stats(
    region: glebe_volatile,
    stats: Out<glebe_volatile_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(region, |of| Ok(of.region.stats().lines()))?))
    })
}
