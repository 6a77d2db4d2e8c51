//! Pools of objects of up to a page: creation, objects by handle, compaction, limits.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use glebe::page_size;
use glebe::reserve::OnRecall;
use glebe::units::{Bytes, Pages};
use glebe::zpool::{AtLimit, Budget, Codec, Compaction, Error, Handle, ObjectPool, Options, Zstd};

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::{none_of, Failure};
use crate::process::{each, end, insert, insert_in, on, with, Objects, Of, Process};

pub(crate) fn codec(codec: u64, zstd_level: u64) -> Result<Codec, Failure> {
    let too_high = |_| Failure::bad("zstd_level", zstd_level);
    match (codec, i32::try_from(zstd_level).map_err(too_high)?) {
        (GLEBE_CODEC_ZSTD, 0) => Ok(Codec::Zstd(Zstd::default())),
        (GLEBE_CODEC_ZSTD, level) => Ok(Codec::Zstd(Zstd::new(level))),
        (GLEBE_CODEC_AUTO, 0) => Ok(Codec::default()),
        (GLEBE_CODEC_NONE, 0) => Ok(Codec::None),
        (GLEBE_CODEC_LZ4, 0) => Ok(Codec::Lz4),
        (..=GLEBE_CODEC_LZ4, _) => Err(Failure::bad("zstd_level beside codec", codec)),
        (other, _) => Err(Failure::bad("codec", other)),
    }
}

fn own(asked: &glebe_zpool_options, codec: Codec) -> Result<Options, Failure> {
    none_of(&[
        ("move_on_recall without a reserve", asked.move_on_recall),
        ("staging_bytes without a reserve", asked.staging_bytes),
    ])?;
    let mut options = ObjectPool::options().codec(codec);
    if asked.limit_bytes > 0 {
        options = options.limit(Bytes::new(asked.limit_bytes));
    }
    if Failure::flag("evict_oldest", asked.evict_oldest)? {
        options = options.at_limit(AtLimit::EvictOldest);
    }
    if Failure::flag("manual_compaction", asked.manual_compaction)? {
        options = options.compaction(Compaction::Manual);
    }
    Ok(options)
}

fn lent(asked: &glebe_zpool_options, codec: Codec) -> Result<glebe_zpool, Failure> {
    none_of(&[
        ("limit_bytes with a reserve", asked.limit_bytes),
        ("evict_oldest with a reserve", asked.evict_oldest),
        ("manual_compaction with a reserve", asked.manual_compaction),
    ])?;
    let moves = Failure::flag("move_on_recall", asked.move_on_recall)?;
    let on_recall = if moves { OnRecall::Move } else { OnRecall::Discard };
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
        let codec = codec(asked.codec, asked.zstd_level)?;
        if asked.reserve != glebe_reserve::default() {
            return Ok(out.set(lent(&asked, codec)?));
        }
        let options = own(&asked, codec)?;
        let make = || {
            let object = Objects::Own(Arc::new(options.build()?));
            Ok(each(Of { reserve: asked.reserve, object }))
        };
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_free(pool: glebe_zpool) -> c_int {
    call(|| end(pool))
}

fn handle(object: glebe_zobject) -> Result<Handle, Error> {
    Handle::from_raw(object.id).ok_or(Error::Foreign)
}

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
            Objects::Own(pool) => pool.insert(bytes),
            Objects::Lent(pool) => pool.insert(bytes),
        })?;
        Ok(out.set(glebe_zobject { id: new.to_raw() }))
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
        // No object needs more than a page of the buffer.
        let to = buffer.bytes(buffer_len_bytes.min(page_size().bytes().as_usize()), "buffer")?;
        let done = on(pool, |pool| match pool {
            Objects::Own(pool) => pool.read(handle(object)?, to).map(Some),
            Objects::Lent(pool) => pool.read(handle(object)?, to),
        });
        match done {
            Ok(Some(len)) => {
                out.set(len);
                Ok(GLEBE_GET_HIT)
            }
            Ok(None) => Ok(GLEBE_GET_MISS),
            Err(Failure::Zpool(error @ Error::BufferTooSmall { len, .. })) => {
                out.set(len);
                if buffer_len_bytes == 0 {
                    Ok(GLEBE_GET_HIT)
                } else {
                    Err(error.into())
                }
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
            Objects::Own(pool) => pool.replace(handle(object)?, bytes),
            Objects::Lent(pool) => pool.replace(handle(object)?, bytes),
        })?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_remove(pool: glebe_zpool, object: glebe_zobject) -> c_int {
    call(|| {
        on(pool, |pool| match pool {
            Objects::Own(pool) => pool.remove(handle(object)?),
            Objects::Lent(pool) => pool.remove(handle(object)?),
        })?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_compact(
    pool: glebe_zpool,
    max_pages: u64,
    max_us: u64,
    compacted: Out<glebe_compacted>,
) -> c_int {
    call(|| {
        let budget = match (max_pages, max_us) {
            (0, 0) => Budget::All,
            (pages, 0) => Budget::Pages(Pages::new(pages)),
            (0, time) => Budget::Time(Duration::from_micros(time)),
            (_, time) => return Err(Failure::bad("max_us beside max_pages", time)),
        };
        let done = on(pool, |pool| match pool {
            Objects::Own(pool) => pool.compact(budget),
            Objects::Lent(pool) => pool.compact(budget),
        })?;
        Ok(compacted.set(glebe_compacted { moved: done.moved, freed_pages: done.freed.get() }))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_set_limit(pool: glebe_zpool, limit_bytes: u64) -> c_int {
    call(|| {
        with(pool, |of| match &of.object {
            Objects::Own(pool) => Ok(pool.set_limit(Bytes::new(limit_bytes))?),
            Objects::Lent(_) => Err(Failure::bad("pool: it is on a reserve", of.reserve.id)),
        })?;
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
