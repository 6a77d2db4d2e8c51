//! Pools of objects on lent pages of a reserve, which lose what first class takes.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use glebe::reserve::{
    LentObjectPool, LentObjectPoolOptions, LentObjectPoolStats, OnRecall, Reserve,
};
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::zpool::Error;

use super::stats::glebe_zpool_stats;
use super::{bad, budget, codec_of, given, object};
use crate::abi::*;
use crate::boundary::{bytes_at, call, read, Fill, Out, Sized64, Text};
use crate::failure::Failure;
use crate::process::{Of, Process};
use crate::table::Kind;

// SAFETY: both are `repr(C)` and consist of words, the first of which is `size`.
unsafe impl Sized64 for glebe_lent_zpool_options {
    const NAME: &'static str = "glebe_lent_zpool_options";
    const LEAST: u64 = 16;
}

// SAFETY: as above.
unsafe impl Sized64 for glebe_lent_zpool_stats {
    const NAME: &'static str = "glebe_lent_zpool_stats";
    const LEAST: u64 = 16;
}

fn options(
    reserve: &Reserve,
    asked: Option<&glebe_lent_zpool_options>,
) -> Result<LentObjectPoolOptions, Failure> {
    let options = reserve.object_pool();
    let Some(asked) = asked else { return Ok(options) };
    let options = options.codec(codec_of(asked.codec, asked.zstd_level)?);
    let options = match asked.on_recall {
        GLEBE_ON_RECALL_DISCARD => options.on_recall(OnRecall::Discard),
        GLEBE_ON_RECALL_MOVE => options.on_recall(OnRecall::Move),
        other => return bad("on_recall", other),
    };
    Ok(match asked.staging_bytes {
        0 => options,
        staging => options.staging(Bytes::new(staging)),
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_create(
    reserve: glebe_reserve,
    options: *const glebe_lent_zpool_options,
    pool: *mut glebe_lent_zpool,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(pool, "pool")? };
        // SAFETY: the caller's duty.
        let asked = if options.is_null() { None } else { Some(unsafe { read(options)? }) };
        let handle = Process::with_reserve(reserve, |process, of| {
            let options = self::options(of, asked.as_ref())?;
            let make = || Ok(Of { reserve, object: options.build()? });
            let key = process.lent_zpools.insert_with("lent object pools", make)?;
            Ok(process.handle(key, Kind::LentZpool))
        })?;
        Ok(out.set(handle))
    })
}

#[no_mangle]
pub extern "C" fn glebe_lent_zpool_destroy(pool: glebe_lent_zpool) -> c_int {
    call(|| {
        let (process, key) = Process::find(pool, Kind::LentZpool)?;
        let unknown = Failure::BadHandle { kind: Kind::LentZpool.name(), handle: pool };
        drop(process.lent_zpools.remove_if(key, || Ok(())).unwrap_or(Err(unknown))?);
        Ok(GLEBE_OK)
    })
}

fn with<R>(
    handle: u64,
    call: impl FnOnce(&LentObjectPool) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let (process, key) = Process::find(handle, Kind::LentZpool)?;
    let unknown = Failure::BadHandle { kind: Kind::LentZpool.name(), handle };
    process.lent_zpools.with(key, |of| call(&of.object)).unwrap_or(Err(unknown))
}

/// The answer to who asked for an object, and what there is to tell of it.
fn found<T>(out: Out<T>, object: Option<T>) -> c_int {
    match object {
        Some(object) => {
            out.set(object);
            GLEBE_GET_HIT
        }
        None => GLEBE_GET_MISS,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_insert(
    pool: glebe_lent_zpool,
    bytes: *const c_void,
    len_bytes: usize,
    object: *mut glebe_zobject,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, bytes) = unsafe { (Out::new(object, "object")?, given(bytes, len_bytes)?) };
        Ok(out.set(with(pool, |pool| Ok(pool.insert(bytes)?))?.to_raw()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_length(
    pool: glebe_lent_zpool,
    object: glebe_zobject,
    len_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        Ok(found(out, with(pool, |pool| Ok(pool.len_of(self::object(object)?)?))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_read(
    pool: glebe_lent_zpool,
    object: glebe_zobject,
    buffer: *mut c_void,
    buffer_len_bytes: usize,
    len_bytes: *mut usize,
) -> c_int {
    call(|| {
        let room = buffer_len_bytes.min(page_size().bytes().as_usize());
        // SAFETY: the caller's duty.
        let (out, to) =
            unsafe { (Out::new(len_bytes, "len_bytes")?, bytes_at(buffer, room, "buffer")?) };
        match with(pool, |pool| Ok(pool.read(self::object(object)?, to)?)) {
            Ok(len) => Ok(found(out, len)),
            Err(Failure::Zpool(error @ Error::BufferTooSmall { len, .. })) => {
                out.set(len);
                Err(error.into())
            }
            Err(failure) => Err(failure),
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_replace(
    pool: glebe_lent_zpool,
    object: glebe_zobject,
    bytes: *const c_void,
    len_bytes: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let bytes = unsafe { given(bytes, len_bytes)? };
        with(pool, |pool| Ok(pool.replace(self::object(object)?, bytes)?))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_lent_zpool_remove(pool: glebe_lent_zpool, object: glebe_zobject) -> c_int {
    call(|| {
        with(pool, |pool| Ok(pool.remove(self::object(object)?)?))?;
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_compact(
    pool: glebe_lent_zpool,
    budget: u64,
    amount: u64,
    compacted: *mut glebe_compacted,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty; null is allowed here.
        let out = unsafe { Out::new(compacted, "compacted") };
        let budget = self::budget(budget, amount)?;
        let done = with(pool, |pool| Ok(pool.compact(budget)?))?;
        if let Ok(out) = out {
            out.set(glebe_compacted { moved: done.moved, freed_pages: done.freed.get() });
        }
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_lent_zpool_sweep(pool: glebe_lent_zpool, zspages: u64) -> c_int {
    call(|| {
        with(pool, |pool| Ok(pool.sweep(zspages)?))?;
        Ok(GLEBE_OK)
    })
}

fn lent_stats(now: &LentObjectPoolStats) -> glebe_lent_zpool_stats {
    glebe_lent_zpool_stats {
        size: 0,
        version: GLEBE_LENT_ZPOOL_STATS_VERSION,
        lost: now.lost,
        refused: now.refused,
        sealed: now.sealed,
        moved_pages: now.moved.get(),
        taken_out: now.taken_out,
        lent_pages: now.lent.get(),
        staged_pages: now.staged.get(),
        staging_pages: now.staging.get(),
        places_bytes: now.places_bytes,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_get_stats(
    pool: glebe_lent_zpool,
    stats: *mut glebe_lent_zpool_stats,
    objects: *mut glebe_zpool_stats,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(stats)? };
        let of_objects = match objects.is_null() {
            true => None,
            // SAFETY: the caller's duty.
            false => Some(unsafe { Fill::new(objects)? }),
        };
        let now = with(pool, |pool| Ok(pool.stats()))?;
        of_objects.into_iter().for_each(|of| {
            of.set(&glebe_zpool_stats::of(&now.objects));
        });
        Ok(out.set(&lent_stats(&now)))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_lent_zpool_format_stats(
    pool: glebe_lent_zpool,
    format: u64,
    text: *mut c_char,
    text_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(text, text_len_bytes, needed_bytes)? };
        let of = match format {
            GLEBE_FORMAT_TEXT => ToString::to_string,
            GLEBE_FORMAT_JSON => LentObjectPoolStats::to_json,
            GLEBE_FORMAT_OPENMETRICS => LentObjectPoolStats::to_openmetrics,
            GLEBE_FORMAT_CLASSES => |now: &LentObjectPoolStats| now.objects.class_table(),
            value => return bad("format", value),
        };
        text.set(of(&with(pool, |pool| Ok(pool.stats()))?))
    })
}
