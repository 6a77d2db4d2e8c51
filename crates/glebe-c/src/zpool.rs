//! Pools of objects up to a page: making them, objects by handle, compaction, limits.
#![allow(unsafe_code)] // exported names

mod dictionary;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use glebe::reserve::OnRecall;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::zpool::{
    AtLimit, Budget, Codec, Compaction, Dictionary, Error, Handle, Options, Pool, Zstd,
};

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::Failure;
use crate::process::{each, end, insert, insert_in, with, Objects, Of, Process};

/// The dictionary of the caller's that both may want: the codec, and what codes anew later.
fn dictionary(asked: &glebe_zpool_options) -> Result<Option<Dictionary>, Failure> {
    let len = usize::try_from(asked.dictionary_len_bytes).unwrap_or(usize::MAX);
    let given = In::new(asked.dictionary);
    let bytes = given.bytes(len, "dictionary")?;
    if asked.dictionary.is_none() {
        return Ok(None);
    }
    Ok(Some(Dictionary::from_bytes(Arc::<[u8]>::from(bytes)).map_err(Error::from)?))
}

fn zstd(level: u64, dictionary: Option<&Dictionary>) -> Result<Zstd, Failure> {
    let zstd = match i32::try_from(level) {
        Ok(0) => Zstd::default(),
        Ok(level) => Zstd::new(level),
        Err(_) => return Err(Failure::bad("zstd_level", level)),
    };
    Ok(match dictionary {
        Some(dictionary) => zstd.dictionary(dictionary.clone()),
        None => zstd,
    })
}

fn codec(asked: &glebe_zpool_options, dictionary: Option<&Dictionary>) -> Result<Codec, Failure> {
    let level = asked.zstd_level;
    match asked.codec {
        GLEBE_CODEC_ZSTD => Ok(Codec::Zstd(zstd(level, dictionary)?)),
        GLEBE_CODEC_AUTO | GLEBE_CODEC_NONE | GLEBE_CODEC_LZ4 if level != 0 => {
            Err(Failure::bad("zstd_level without GLEBE_CODEC_ZSTD", level))
        }
        GLEBE_CODEC_AUTO => Ok(Codec::default()),
        GLEBE_CODEC_NONE => Ok(Codec::None),
        GLEBE_CODEC_LZ4 => Ok(Codec::Lz4),
        other => Err(Failure::bad("codec", other)),
    }
}

/// Refuses the first of these members that is not 0.
fn none_of(members: &[(&str, u64)]) -> Result<(), Failure> {
    match members.iter().find(|(_, value)| *value != 0) {
        Some((name, value)) => Err(Failure::bad(name, *value)),
        None => Ok(()),
    }
}

/// A pool in memory of its own.
fn own(asked: &glebe_zpool_options, codec: Codec) -> Result<Options, Failure> {
    none_of(&[
        ("on_recall without a reserve", asked.on_recall),
        ("staging_bytes without a reserve", asked.staging_bytes),
    ])?;
    let mut options = Pool::options().codec(codec);
    if asked.limit_bytes > 0 {
        options = options.limit(Bytes::new(asked.limit_bytes));
    }
    options = match asked.at_limit {
        GLEBE_AT_LIMIT_REFUSE => options.at_limit(AtLimit::Refuse),
        GLEBE_AT_LIMIT_EVICT_OLDEST => options.at_limit(AtLimit::EvictOldest),
        other => return Err(Failure::bad("at_limit", other)),
    };
    match asked.compaction {
        GLEBE_COMPACTION_AUTOMATIC => Ok(options.compaction(Compaction::Automatic)),
        GLEBE_COMPACTION_MANUAL => Ok(options.compaction(Compaction::Manual)),
        other => Err(Failure::bad("compaction", other)),
    }
}

/// A pool on pages that a reserve lends.
fn lent(asked: &glebe_zpool_options, codec: Codec) -> Result<glebe_zpool, Failure> {
    none_of(&[
        ("limit_bytes with a reserve", asked.limit_bytes),
        ("at_limit with a reserve", asked.at_limit),
        ("compaction with a reserve", asked.compaction),
    ])?;
    let on_recall = match asked.on_recall {
        GLEBE_ON_RECALL_DISCARD => OnRecall::Discard,
        GLEBE_ON_RECALL_MOVE => OnRecall::Move,
        other => return Err(Failure::bad("on_recall", other)),
    };
    insert_in(asked.reserve, |of| {
        let mut options = of.object_pool().codec(codec).on_recall(on_recall);
        if asked.staging_bytes > 0 {
            options = options.staging(Bytes::new(asked.staging_bytes));
        }
        Ok(each(Objects::Lent(options.build()?)))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_new(
    options: In<glebe_zpool_options>,
    pool: Out<glebe_zpool>,
) -> c_int {
    call(|| {
        let (out, asked) = (pool.checked("pool")?, options.read()?);
        let dictionary = dictionary(&asked)?;
        let codec = codec(&asked, dictionary.as_ref())?;
        if asked.reserve != glebe_reserve::default() {
            return Ok(out.set(lent(&asked, codec)?));
        }
        let options = own(&asked, codec)?;
        let make = || {
            let object = Objects::Own(Arc::new(options.build()?), dictionary);
            Ok(each(Of { reserve: asked.reserve, object }))
        };
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_free(pool: glebe_zpool) -> c_int {
    call(|| end(pool))
}

/// Calls `call` on what a pool's handle stands for.
fn on<R>(pool: glebe_zpool, call: impl FnOnce(&Objects) -> Result<R, Error>) -> Result<R, Failure> {
    with(pool, |of| Ok(call(&of.object)?))
}

/// Calls `call` on a pool that must have memory of its own.
fn on_own<R>(
    pool: glebe_zpool,
    call: impl FnOnce(&Pool, Option<&Dictionary>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    with(pool, |of| match &of.object {
        Objects::Own(pool, dictionary) => call(pool, dictionary.as_ref()),
        Objects::Lent(_) => Err(Failure::bad("pool: it is on a reserve", of.reserve.id)),
    })
}

fn handle(object: glebe_zobject) -> Result<Handle, Error> {
    Handle::from_raw(object.id).ok_or(Error::Foreign)
}

/// Refuses an object that is longer than a page, before a slice of it is made.
fn check_len(len: usize) -> Result<(), Failure> {
    let page = page_size().bytes();
    if len as u64 > page.get() {
        return Err(Error::TooLong { len, page }.into());
    }
    Ok(())
}

#[no_mangle]
pub extern "C" fn glebe_zpool_insert(
    pool: glebe_zpool,
    bytes: In<c_void>,
    len_bytes: usize,
    object: Out<glebe_zobject>,
) -> c_int {
    call(|| {
        let out = object.checked("object")?;
        check_len(len_bytes)?;
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        let new = on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.insert(bytes),
            Objects::Lent(pool) => pool.insert(bytes),
        })?;
        Ok(out.set(glebe_zobject { id: new.to_raw() }))
    })
}

/// The answer to who asked for an object of so many bytes, which may be lost.
fn found(out: Out<usize>, len: Option<usize>) -> c_int {
    match len {
        Some(len) => {
            out.set(len);
            GLEBE_GET_HIT
        }
        None => GLEBE_GET_MISS,
    }
}

#[no_mangle]
pub extern "C" fn glebe_zpool_length(
    pool: glebe_zpool,
    object: glebe_zobject,
    len_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let out = len_bytes.checked("len_bytes")?;
        let len = on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.len_of(handle(object)?).map(Some),
            Objects::Lent(pool) => pool.len_of(handle(object)?),
        })?;
        Ok(found(out, len))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_read(
    pool: glebe_zpool,
    object: glebe_zobject,
    mut buffer: Out<c_void>,
    buffer_len_bytes: usize,
    len_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let out = len_bytes.checked("len_bytes")?;
        // No object needs more of the buffer than a page.
        let to = buffer.bytes(buffer_len_bytes.min(page_size().bytes().as_usize()), "buffer")?;
        let done = on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.read(handle(object)?, to).map(Some),
            Objects::Lent(pool) => pool.read(handle(object)?, to),
        });
        match done {
            Ok(len) => Ok(found(out, len)),
            Err(Failure::Zpool(error @ Error::BufferTooSmall { len, .. })) => {
                out.set(len);
                Err(error.into())
            }
            Err(failure) => Err(failure),
        }
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_replace(
    pool: glebe_zpool,
    object: glebe_zobject,
    bytes: In<c_void>,
    len_bytes: usize,
) -> c_int {
    call(|| {
        check_len(len_bytes)?;
        let bytes = bytes.bytes(len_bytes, "bytes")?;
        on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.replace(handle(object)?, bytes),
            Objects::Lent(pool) => pool.replace(handle(object)?, bytes),
        })?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_remove(pool: glebe_zpool, object: glebe_zobject) -> c_int {
    call(|| {
        on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.remove(handle(object)?),
            Objects::Lent(pool) => pool.remove(handle(object)?),
        })?;
        Ok(GLEBE_OK)
    })
}

fn budget(budget: u64, amount: u64) -> Result<Budget, Failure> {
    match budget {
        GLEBE_BUDGET_PAGES => Ok(Budget::Pages(Pages::new(amount))),
        GLEBE_BUDGET_US => Ok(Budget::Time(Duration::from_micros(amount))),
        GLEBE_BUDGET_ALL if amount == 0 => Ok(Budget::All),
        GLEBE_BUDGET_ALL => Err(Failure::bad("amount with GLEBE_BUDGET_ALL", amount)),
        other => Err(Failure::bad("budget", other)),
    }
}

#[no_mangle]
pub extern "C" fn glebe_zpool_compact(
    pool: glebe_zpool,
    budget: u64,
    amount: u64,
    compacted: Out<glebe_compacted>,
) -> c_int {
    call(|| {
        let budget = self::budget(budget, amount)?;
        let done = on(pool, |pool| match pool {
            Objects::Own(pool, _) => pool.compact(budget),
            Objects::Lent(pool) => pool.compact(budget),
        })?;
        Ok(compacted.set(glebe_compacted { moved: done.moved, freed_pages: done.freed.get() }))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_recompress(
    pool: glebe_zpool,
    zstd_level: u64,
    budget: u64,
    amount: u64,
    recompressed: Out<glebe_recompressed>,
) -> c_int {
    call(|| {
        let budget = self::budget(budget, amount)?;
        let done = on_own(pool, |pool, dictionary| {
            Ok(pool.recompress(&zstd(zstd_level, dictionary)?, budget)?)
        })?;
        Ok(recompressed.set(glebe_recompressed {
            objects: done.objects,
            before_bytes: done.bytes_before.get(),
            after_bytes: done.bytes_after.get(),
        }))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_set_limit(pool: glebe_zpool, limit_bytes: u64) -> c_int {
    call(|| {
        on_own(pool, |pool, _| Ok(pool.set_limit(Bytes::new(limit_bytes))?))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_sweep(pool: glebe_zpool, zspages: u64) -> c_int {
    call(|| {
        on(pool, |pool| match pool {
            Objects::Own(..) => Ok(()),
            Objects::Lent(pool) => pool.sweep(zspages),
        })?;
        Ok(GLEBE_OK)
    })
}
