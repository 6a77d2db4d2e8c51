//! Shared regions: their table, marks, unmarks and purges.
//!
//! Children inherit the handles. A call holds no lock of the table while it uses a region; module
//! `sharing` says why.
//!
//! # Safety
//! The caller vouches for its memory.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use glebe::page_size;
use glebe::reclaim::Part;
use glebe::units::Bytes;
use glebe::volatile::{Error, Order, Purger, Shared, SharedOptions, SharedStats};

use super::claims::{check_fork, hold_claims, range, Inside};
use super::regions::follow_forks;
use super::{pages_of, priority, told};
use crate::abi::*;
use crate::boundary::{call, Array, In, Out, Text};
use crate::descriptor::copy_of;
use crate::failure::{none_of, Failure};
use crate::sharing::{ForPin, Sharing};
use crate::stats::form;
use crate::table::{AllHeld, Kind, Table};

static SHARED: Table<Arc<Sharing>, 1> = Table::new(Kind { number: 10, name: "shared region" }, 0);

pub(super) type Held = AllHeld<'static, Arc<Sharing>>;

/// Locks the table. Callers hold the lock of the claims, so nobody adds a region meanwhile.
pub(super) fn hold() -> Held {
    SHARED.hold_all()
}

fn find(shared: glebe_shared) -> Result<Arc<Sharing>, Failure> {
    check_fork()?;
    SHARED.with(shared.id, |of| Ok(Arc::clone(of)))
}

/// Returns a reference that counts as a pin.
pub(super) fn find_for_pin(shared: glebe_shared) -> Result<ForPin, Failure> {
    check_fork()?;
    SHARED.with(shared.id, |of| Ok(ForPin::new(of)))
}

fn with<R>(
    shared: glebe_shared,
    call: impl FnOnce(&Shared) -> Result<R, Error>,
) -> Result<R, Failure> {
    let _inside = Inside::enter()?;
    Ok(call(&find(shared)?.shared)?)
}

fn insert(
    out: Out<glebe_shared>,
    make: impl FnOnce() -> Result<Shared, Error>,
) -> Result<c_int, Failure> {
    follow_forks()?;
    let _inside = Inside::enter()?;
    let new = Sharing::new(make()?);
    let adding = hold_claims();
    let id = SHARED.insert(|| Ok([new]))?;
    drop(adding);
    Ok(out.set(glebe_shared { id }))
}

fn options(asked: &glebe_shared_options) -> Result<SharedOptions, Failure> {
    let mut options = Shared::options().sigbus(Failure::flag("sigbus", asked.sigbus)?);
    if asked.granule_bytes > 0 {
        options = options.granule(Bytes::new(asked.granule_bytes));
    }
    if asked.holders > 0 {
        // The library refuses too many.
        options = options.holders(u32::try_from(asked.holders).unwrap_or(u32::MAX));
    }
    if asked.pin_quota_bytes > 0 {
        options = options.pin_quota(Bytes::new(asked.pin_quota_bytes));
    }
    Ok(options)
}

#[no_mangle]
pub extern "C" fn glebe_shared_new(
    len_bytes: u64,
    options: In<glebe_shared_options>,
    shared: Out<glebe_shared>,
) -> c_int {
    call(|| {
        let (out, asked) = (shared.checked("shared")?, options.read()?);
        let (options, len) = (self::options(&asked)?, Bytes::new(len_bytes));
        insert(out, || match asked.address {
            None => options.create(len),
            // SAFETY: the caller vouches for the memory.
            Some(address) => unsafe { options.over(address.as_ptr().cast(), len) },
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_new_at(
    path: In<c_char>,
    len_bytes: u64,
    options: In<glebe_shared_options>,
    shared: Out<glebe_shared>,
) -> c_int {
    call(|| {
        let (out, asked) = (shared.checked("shared")?, options.read()?);
        none_of(&[address_of(&asked)])?;
        let options = self::options(&asked)?;
        let path = path.path().ok_or_else(|| Failure::null("path"))?;
        insert(out, || options.create_at(path, Bytes::new(len_bytes)))
    })
}

fn address_of(asked: &glebe_shared_options) -> (&'static str, u64) {
    ("address of a file", asked.address.map_or(0, |address| address.as_ptr().addr() as u64))
}

/// Refuses options that an existing file already determines.
fn options_of_open(asked: &glebe_shared_options) -> Result<SharedOptions, Failure> {
    none_of(&[
        ("granule_bytes of a file that is there", asked.granule_bytes),
        ("holders of a file that is there", asked.holders),
        ("pin_quota_bytes of a file that is there", asked.pin_quota_bytes),
        address_of(asked),
    ])?;
    options(asked)
}

#[no_mangle]
pub extern "C" fn glebe_shared_open(
    path: In<c_char>,
    options: In<glebe_shared_options>,
    shared: Out<glebe_shared>,
) -> c_int {
    call(|| {
        let (out, options) = (shared.checked("shared")?, options_of_open(&options.read()?)?);
        let path = path.path().ok_or_else(|| Failure::null("path"))?;
        insert(out, || options.open(path))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_adopt(
    fd: c_int,
    options: In<glebe_shared_options>,
    shared: Out<glebe_shared>,
) -> c_int {
    call(|| {
        let (out, options) = (shared.checked("shared")?, options_of_open(&options.read()?)?);
        let copy = copy_of(fd)?;
        insert(out, || options.adopt(copy))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_free(shared: glebe_shared) -> c_int {
    call(|| {
        check_fork()?;
        let _inside = Inside::enter()?;
        let mut held = SHARED.hold(shared.id)?;
        let pins = held.get().map_or(0, |of| of.pins());
        if pins > 0 {
            let text = format!("the shared region still has {pins} pins; free them first");
            return Err(Failure::new(GLEBE_ERROR_BUSY, text));
        }
        let ended = held.take();
        drop(held);
        ended.into_iter().for_each(Sharing::end);
        Ok(GLEBE_OK)
    })
}

/// Returns a reclaimer's part for the region. The part does not keep the region alive.
pub(crate) fn shared_part(shared: glebe_shared) -> Result<Part, Failure> {
    let _inside = Inside::enter()?;
    check_fork()?;
    if let Some(purger) = SHARED.with(shared.id, |of| Ok(of.purger()))? {
        return Ok(Part::from(&purger));
    }
    let copy = copy_of(find(shared)?.shared.fd().as_raw_fd())?;
    let new = Arc::new(Purger::adopt(copy)?);
    SHARED.with(shared.id, |of| Ok(Part::from(&of.keep(new))))
}

#[no_mangle]
pub extern "C" fn glebe_shared_fd(shared: glebe_shared, fd: Out<c_int>) -> c_int {
    call(|| {
        let out = fd.checked("fd")?;
        with(shared, |of| Ok(out.set(of.fd().as_raw_fd())))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_memory(
    shared: glebe_shared,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
    granule_bytes: Out<u64>,
) -> c_int {
    call(|| {
        with(shared, |of| {
            address.set(of.as_ptr().cast());
            len_bytes.set(of.len().get());
            Ok(granule_bytes.set(of.granule().get()))
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_mark(
    shared: glebe_shared,
    offset_bytes: u64,
    len_bytes: u64,
    priority: u64,
    order: u64,
) -> c_int {
    call(|| {
        let (known, range) = (self::priority(priority)?, range(offset_bytes, len_bytes)?);
        let order = match order {
            GLEBE_ORDER_FIFO => Order::Fifo,
            GLEBE_ORDER_LIFO => Order::Lifo,
            other => return Err(Failure::bad("order", other)),
        };
        with(shared, |of| of.mark(range, known, order))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_unmark(
    shared: glebe_shared,
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
        let found = with(shared, |of| of.unmark(range))?;
        let _inside = Inside::enter()?;
        // A fork waits for the table's lock, so no child inherits `untold` locked.
        let all = SHARED.with(shared.id, |of| Ok(of.untold.tell(pages, found.runs(), capacity)));
        // If the region was freed meanwhile, nothing can be reported later.
        Ok(told(out, capacity, all.as_deref().unwrap_or(found.runs())))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_drop_now(
    shared: glebe_shared,
    offset_bytes: u64,
    len_bytes: u64,
    dropped_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let range = range(offset_bytes, len_bytes)?;
        let dropped = with(shared, |of| of.drop_now(range))?;
        Ok(dropped_bytes.set(dropped.bytes(page_size()).get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_purge(
    shared: glebe_shared,
    target_bytes: u64,
    up_to: u64,
    purged_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let up_to = priority(up_to)?;
        let purged = with(shared, |of| of.purge(Bytes::new(target_bytes), up_to))?;
        Ok(purged_bytes.set(purged.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_get_stats(
    shared: glebe_shared,
    stats: Out<glebe_shared_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(shared, |of| Ok(of.stats()))?.lines()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_shared_format_stats(
    shared: glebe_shared,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        let stats = with(shared, |of| Ok(of.stats()))?;
        text.set(form(format, &stats, SharedStats::to_json, SharedStats::to_openmetrics)?)
    })
}
