//! Volatile memory: regions, marks, unmarks, reads and writes.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`] but for buffers,
//! bitmaps and the arrays of runs, which are as long as the number beside them says.
#![allow(unsafe_code)]

mod regions;
mod stats;
mod unmark;
mod vrange;

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::time::Duration;

use glebe::units::Bytes;
use glebe::volatile::{self, Engine, Options, Priority, Region};

use crate::abi::*;
use crate::boundary::{bytes_at, bytes_from, call, read, Out, Sized64};
use crate::failure::Failure;
use regions::{follow_forks, insert, remove, with, Claim};

const _: () = assert!(
    Priority::LOWEST.get() as u64 == GLEBE_PRIORITY_LOWEST
        && Priority::NORMAL.get() as u64 == GLEBE_PRIORITY_NORMAL
        && Priority::HIGHEST.get() as u64 == GLEBE_PRIORITY_HIGHEST
);

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_volatile_options {
    const NAME: &'static str = "glebe_volatile_options";
    const LEAST: u64 = 16;
}

/// What is asked for, checked.
///
/// # Safety
/// `asked` is null, or its first word is the number of bytes there.
unsafe fn options(asked: *const glebe_volatile_options) -> Result<Options, Failure> {
    if asked.is_null() {
        return Ok(Region::options());
    }
    // SAFETY: the caller's duty.
    let asked = unsafe { read(asked)? };
    let mut options = Region::options();
    options = match asked.engine {
        GLEBE_ENGINE_AUTO => options,
        GLEBE_ENGINE_SCAN => options.engine(Engine::Scan),
        GLEBE_ENGINE_TAG => options.engine(Engine::Tag),
        value => return Err(Failure::BadArgument { name: "engine", value }),
    };
    options = match asked.huge {
        0 => options,
        1 => options.huge(true),
        value => return Err(Failure::BadArgument { name: "huge", value }),
    };
    if asked.cap_bytes > 0 {
        options = options.cap(Bytes::new(asked.cap_bytes));
    }
    if asked.max_age_ns > 0 {
        options = options.max_age(Duration::from_nanos(asked.max_age_ns));
    }
    Ok(options)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_map(
    len_bytes: u64,
    options: *const glebe_volatile_options,
    region: *mut glebe_volatile,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, options) = unsafe { (Out::new(region, "region")?, self::options(options)?) };
        follow_forks()?;
        Ok(out.set(insert(None, || Ok(options.build(Bytes::new(len_bytes))?))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_over(
    address: *mut c_void,
    len_bytes: u64,
    options: *const glebe_volatile_options,
    region: *mut glebe_volatile,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, options) = unsafe { (Out::new(region, "region")?, self::options(options)?) };
        if address.is_null() {
            return Err(Failure::Null("address"));
        }
        follow_forks()?;
        let claim = Claim::new(whole_pages(address.addr(), len_bytes)?)?;
        // SAFETY: the caller's duty; the claim is the region's alone.
        let over = || Ok(unsafe { options.build_over(address.cast(), Bytes::new(len_bytes))? });
        Ok(out.set(insert(Some(claim), over)?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_refilled(
    address: *mut c_void,
    len_bytes: u64,
    options: *const glebe_volatile_options,
    refill: glebe_refill,
    data: *mut c_void,
    region: *mut glebe_volatile,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, options) = unsafe { (Out::new(region, "region")?, self::options(options)?) };
        let refill = refill.ok_or(Failure::Null("refill"))?;
        // SAFETY: the caller's duty.
        let options = unsafe { options.on_lost(refill, data.cast_const().cast()) };
        follow_forks()?;
        if address.is_null() {
            return Ok(out.set(insert(None, || Ok(options.build(Bytes::new(len_bytes))?))?));
        }
        let claim = Claim::new(whole_pages(address.addr(), len_bytes)?)?;
        // SAFETY: the caller's duty; the claim is the region's alone.
        let over = || Ok(unsafe { options.build_over(address.cast(), Bytes::new(len_bytes))? });
        Ok(out.set(insert(Some(claim), over)?))
    })
}

/// The addresses of the whole base pages of `len_bytes` at `addr`.
fn whole_pages(addr: usize, len_bytes: u64) -> Result<Range<usize>, Failure> {
    let page = glebe::sys::page_size();
    let end = range(addr as u64, len_bytes)?.end.pages_down(page).bytes(page).as_usize();
    let start = addr.checked_next_multiple_of(page.bytes().as_usize()).filter(|at| *at < end);
    start.map(|start| start..end).ok_or(volatile::Error::Empty.into())
}

#[no_mangle]
pub extern "C" fn glebe_volatile_unmap(region: glebe_volatile) -> c_int {
    call(|| {
        drop(remove(region)?);
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_address(
    region: glebe_volatile,
    address: *mut *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(address, "address")? };
        Ok(out.set(with(region, |of| Ok(of.region.as_ptr()))?.cast()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_len(region: glebe_volatile, len_bytes: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        Ok(out.set(with(region, |of| Ok(of.region.len().get()))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_granule(
    region: glebe_volatile,
    granule_bytes: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(granule_bytes, "granule_bytes")? };
        Ok(out.set(with(region, |of| Ok(of.region.granule().get()))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_engine(region: glebe_volatile, engine: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(engine, "engine")? };
        Ok(out.set(with(region, |of| Ok(number_of(of.region.engine())))?))
    })
}

fn number_of(engine: Engine) -> u64 {
    match engine {
        Engine::Scan => GLEBE_ENGINE_SCAN,
        Engine::Tag => GLEBE_ENGINE_TAG,
    }
}

/// `len_bytes` from `offset_bytes` on; what overflows is refused as the library refuses it.
fn range(offset_bytes: u64, len_bytes: u64) -> Result<Range<Bytes>, Failure> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) => Ok(Bytes::new(offset_bytes)..Bytes::new(end)),
        None => {
            let greatest = Bytes::new(u64::MAX);
            Err(volatile::Error::Beyond { end: greatest, limit: greatest }.into())
        }
    }
}

#[no_mangle]
pub extern "C" fn glebe_volatile_mark(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    priority: u64,
) -> c_int {
    call(|| {
        let known = u8::try_from(priority).ok().and_then(Priority::new);
        let unknown = Failure::BadArgument { name: "priority", value: priority };
        let (known, range) = (known.ok_or(unknown)?, range(offset_bytes, len_bytes)?);
        with(region, |of| Ok(of.region.mark(range, known)?))?;
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_drop_now(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    dropped_bytes: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(dropped_bytes, "dropped_bytes")? };
        let range = range(offset_bytes, len_bytes)?;
        Ok(out.set(with(region, |of| Ok(of.region.drop_now(range)?))?.get()))
    })
}

/// Refuses a buffer of more bytes than memory can have.
fn check_len(len_bytes: usize, is_null: bool) -> Result<(), Failure> {
    if isize::try_from(len_bytes).is_err() && !is_null {
        let (end, limit) = (Bytes::new(len_bytes as u64), Bytes::new(isize::MAX as u64));
        return Err(volatile::Error::Beyond { end, limit }.into());
    }
    Ok(())
}

/// The caller's buffer to fill, which may be null if it has no bytes.
///
/// # Safety
/// As [`bytes_at`].
unsafe fn buffer_at<'a>(buffer: *mut c_void, len_bytes: usize) -> Result<&'a mut [u8], Failure> {
    check_len(len_bytes, buffer.is_null())?;
    // SAFETY: the caller's duty.
    unsafe { bytes_at(buffer, len_bytes, "buffer") }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_try_read(
    region: glebe_volatile,
    offset_bytes: u64,
    buffer: *mut c_void,
    len_bytes: usize,
    lost_bytes: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty; null is allowed for the second.
        let (to, lost) =
            unsafe { (buffer_at(buffer, len_bytes)?, Out::new(lost_bytes, "lost_bytes")) };
        with(region, |of| match of.region.try_read(Bytes::new(offset_bytes), to) {
            Ok(()) => Ok(GLEBE_READ_DONE),
            Err(volatile::Error::Purged { offset }) => {
                if let Ok(lost) = lost {
                    lost.set(offset.get());
                }
                Ok(GLEBE_READ_LOST)
            }
            Err(error) => Err(error.into()),
        })
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_read(
    region: glebe_volatile,
    offset_bytes: u64,
    buffer: *mut c_void,
    len_bytes: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let to = unsafe { buffer_at(buffer, len_bytes)? };
        with(region, |of| Ok(of.region.read(Bytes::new(offset_bytes), to)?))?;
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_write(
    region: glebe_volatile,
    offset_bytes: u64,
    buffer: *const c_void,
    len_bytes: usize,
) -> c_int {
    call(|| {
        check_len(len_bytes, buffer.is_null())?;
        // SAFETY: the caller's duty.
        let from = unsafe { bytes_from(buffer, len_bytes, "buffer")? };
        with(region, |of| Ok(of.region.write(Bytes::new(offset_bytes), from)?))?;
        Ok(GLEBE_OK)
    })
}
