//! Pools of objects up to a page: making them, objects by handle, compaction, limits.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`]: objects and
//! buffers are as long as the number beside them says.
#![allow(unsafe_code)]

mod dictionary;
mod lent;
mod stats;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::zpool::{
    AtLimit, Budget, Codec, Compaction, Error, Handle, ObjectPool, Options, Rules, TableChoice,
    Zstd,
};

use crate::abi::*;
use crate::boundary::{bytes_at, bytes_from, call, read, Out, Sized64};
use crate::failure::Failure;
use crate::process::Process;
use crate::table::Kind;

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_zpool_options {
    const NAME: &'static str = "glebe_zpool_options";
    const LEAST: u64 = 16;
}

fn bad<T>(name: &'static str, value: u64) -> Result<T, Failure> {
    Err(Failure::BadArgument { name, value })
}

/// The rules that are asked for; `None` if all are left to the pool.
fn rules(asked: &glebe_zpool_options) -> Result<Option<Rules>, Failure> {
    let mut rules = Rules::of_page(page_size());
    if asked.chain_pages > 0 {
        rules.chain = Pages::new(asked.chain_pages);
    }
    if asked.step_bytes > 0 {
        rules.step = Bytes::new(asked.step_bytes);
    }
    rules.merge = match asked.merge {
        GLEBE_MERGE_AUTO | GLEBE_MERGE_YES => true,
        GLEBE_MERGE_NO => false,
        other => return bad("merge", other),
    };
    let is_asked = [asked.chain_pages, asked.step_bytes, asked.merge].iter().any(|&n| n != 0);
    Ok(is_asked.then_some(rules))
}

/// What is asked for, checked.
///
/// # Safety
/// `asked` is null, or its first word is the number of bytes there.
unsafe fn options(asked: *const glebe_zpool_options) -> Result<(Options, Codec), Failure> {
    let mut options = ObjectPool::options();
    if asked.is_null() {
        return Ok((options, Codec::default()));
    }
    // SAFETY: the caller's duty.
    let asked = unsafe { read(asked)? };
    if asked.limit_bytes > 0 {
        options = options.limit(Bytes::new(asked.limit_bytes));
    }
    options = match asked.at_limit {
        GLEBE_AT_LIMIT_REFUSE => options.at_limit(AtLimit::Refuse),
        GLEBE_AT_LIMIT_EVICT_OLDEST => options.at_limit(AtLimit::EvictOldest),
        other => return bad("at_limit", other),
    };
    options = match asked.compaction {
        GLEBE_COMPACTION_AUTOMATIC => options.compaction(Compaction::Automatic),
        GLEBE_COMPACTION_MANUAL => options.compaction(Compaction::Manual),
        other => return bad("compaction", other),
    };
    let choice = match (asked.table, rules(&asked)?) {
        (GLEBE_TABLE_BY_SIZE, None) => TableChoice::BySize,
        (GLEBE_TABLE_FITTED, None) => TableChoice::Fitted,
        (GLEBE_TABLE_RULES, rules) => {
            TableChoice::Rules(rules.unwrap_or(Rules::of_page(page_size())))
        }
        (table @ (GLEBE_TABLE_BY_SIZE | GLEBE_TABLE_FITTED), Some(_)) => {
            return bad("table with chain_pages, step_bytes or merge", table)
        }
        (other, _) => return bad("table", other),
    };
    Ok((options.table(choice), codec(&asked)?))
}

fn codec(asked: &glebe_zpool_options) -> Result<Codec, Failure> {
    codec_of(asked.codec, asked.zstd_level)
}

fn codec_of(codec: u64, level: u64) -> Result<Codec, Failure> {
    match codec {
        GLEBE_CODEC_ZSTD => Ok(Codec::Zstd(zstd(level)?)),
        GLEBE_CODEC_AUTO | GLEBE_CODEC_NONE | GLEBE_CODEC_LZ4 if level != 0 => {
            bad("zstd_level without GLEBE_CODEC_ZSTD", level)
        }
        GLEBE_CODEC_AUTO => Ok(Codec::default()),
        GLEBE_CODEC_NONE => Ok(Codec::None),
        GLEBE_CODEC_LZ4 => Ok(Codec::Lz4),
        other => bad("codec", other),
    }
}

fn zstd(level: u64) -> Result<Zstd, Failure> {
    match i32::try_from(level) {
        Ok(0) => Ok(Zstd::default()),
        Ok(level) => Ok(Zstd::new(level)),
        Err(_) => bad("zstd_level", level),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_create(
    options: *const glebe_zpool_options,
    pool: *mut glebe_zpool,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, options) = unsafe { (Out::new(pool, "pool")?, self::options(options)?) };
        let (options, codec) = options;
        create(options.codec(codec), out)
    })
}

fn create(options: Options, out: Out<glebe_zpool>) -> Result<c_int, Failure> {
    let process = Process::create()?;
    let make = || Ok(Arc::new(options.build()?));
    let key = process.zpools.insert_with("object pools", make)?;
    Ok(out.set(process.handle(key, Kind::Zpool)))
}

#[no_mangle]
pub extern "C" fn glebe_zpool_destroy(pool: glebe_zpool) -> c_int {
    call(|| {
        let (process, key) = Process::find(pool, Kind::Zpool)?;
        let unknown = Failure::BadHandle { kind: Kind::Zpool.name(), handle: pool };
        drop(process.zpools.remove_if(key, || Ok(())).unwrap_or(Err(unknown))?);
        Ok(GLEBE_OK)
    })
}

/// Calls `call` on the pool of a handle, which is not destroyed meanwhile.
fn with<R>(
    handle: u64,
    call: impl FnOnce(&ObjectPool) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let (process, key) = Process::find(handle, Kind::Zpool)?;
    let unknown = Failure::BadHandle { kind: Kind::Zpool.name(), handle };
    process.zpools.with(key, |pool| call(pool)).unwrap_or(Err(unknown))
}

fn object(handle: glebe_zobject) -> Result<Handle, Failure> {
    Ok(Handle::from_raw(handle).ok_or(Error::Foreign)?)
}

/// The caller's object. What is longer than a page is refused before a slice of it is made.
///
/// # Safety
/// `bytes` is null or has `len_bytes`, which nobody writes meanwhile.
unsafe fn given<'a>(bytes: *const c_void, len_bytes: usize) -> Result<&'a [u8], Failure> {
    let page = page_size().bytes();
    if len_bytes as u64 > page.get() {
        return Err(Error::TooLong { len: len_bytes, page }.into());
    }
    // SAFETY: the caller's duty.
    unsafe { bytes_from(bytes, len_bytes, "bytes") }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_insert(
    pool: glebe_zpool,
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
pub unsafe extern "C" fn glebe_zpool_length(
    pool: glebe_zpool,
    object: glebe_zobject,
    len_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        Ok(out.set(with(pool, |pool| Ok(pool.len_of(self::object(object)?)?))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_read(
    pool: glebe_zpool,
    object: glebe_zobject,
    buffer: *mut c_void,
    buffer_len_bytes: usize,
    len_bytes: *mut usize,
) -> c_int {
    call(|| {
        // No object needs more of the buffer than a page.
        let room = buffer_len_bytes.min(page_size().bytes().as_usize());
        // SAFETY: the caller's duty.
        let (out, to) =
            unsafe { (Out::new(len_bytes, "len_bytes")?, bytes_at(buffer, room, "buffer")?) };
        match with(pool, |pool| Ok(pool.read(self::object(object)?, to)?)) {
            Ok(len) => Ok(out.set(len)),
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
pub unsafe extern "C" fn glebe_zpool_replace(
    pool: glebe_zpool,
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
pub extern "C" fn glebe_zpool_remove(pool: glebe_zpool, object: glebe_zobject) -> c_int {
    call(|| {
        with(pool, |pool| Ok(pool.remove(self::object(object)?)?))?;
        Ok(GLEBE_OK)
    })
}

fn budget(budget: u64, amount: u64) -> Result<Budget, Failure> {
    match budget {
        GLEBE_BUDGET_PAGES => Ok(Budget::Pages(Pages::new(amount))),
        GLEBE_BUDGET_US => Ok(Budget::Time(Duration::from_micros(amount))),
        GLEBE_BUDGET_ALL if amount == 0 => Ok(Budget::All),
        GLEBE_BUDGET_ALL => bad("amount with GLEBE_BUDGET_ALL", amount),
        other => bad("budget", other),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_compact(
    pool: glebe_zpool,
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

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_freeable(pool: glebe_zpool, pages: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(pages, "pages")? };
        Ok(out.set(with(pool, |pool| Ok(pool.freeable()))?.get()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_held(pool: glebe_zpool, held_bytes: *mut u64) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(held_bytes, "held_bytes")? };
        Ok(out.set(with(pool, |pool| Ok(pool.held()))?.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_set_limit(pool: glebe_zpool, limit_bytes: u64) -> c_int {
    call(|| {
        with(pool, |pool| Ok(pool.set_limit(Bytes::new(limit_bytes))?))?;
        Ok(GLEBE_OK)
    })
}
