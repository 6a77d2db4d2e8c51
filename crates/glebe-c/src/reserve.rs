//! Creating and destroying a reserve, and what is to be known of it.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::time::Duration;

use glebe::contig::{Contig, HeldBy, Options, Source};
use glebe::reserve::{self, Error, Reserve, Resized, Writers};
use glebe::sys::hugetlb;
use glebe::units::{Bytes, PageSize, Pages};
use glebe::zpool::{Codec, Zstd};

use crate::abi::*;
use crate::boundary::{call, read, Array, Fill, Out, Sized64, Text};
use crate::failure::Failure;
use crate::place::source_of;
use crate::process::Process;
use crate::table::Kind;

// SAFETY: all are `repr(C)` and consist of words, the first of which is `size`.
unsafe impl Sized64 for glebe_options {
    const NAME: &'static str = "glebe_options";
    const LEAST: u64 = 16;
}

// SAFETY: as above.
unsafe impl Sized64 for glebe_memory {
    const NAME: &'static str = "glebe_memory";
    const LEAST: u64 = 16;
}

fn bad<T>(name: &'static str, value: u64) -> Result<T, Failure> {
    Err(Failure::BadArgument { name, value })
}

fn contig_options(asked: &glebe_options) -> Result<Options, Failure> {
    let source = match asked.source {
        GLEBE_SOURCE_AUTO => None,
        GLEBE_SOURCE_HUGETLB => {
            match (asked.hugetlb_page_bytes, PageSize::new(asked.hugetlb_page_bytes)) {
                (0, _) => Source::Hugetlb(hugetlb::smallest()).into(),
                (_, Some(size)) => Source::Hugetlb(size).into(),
                (bytes, None) => return bad("hugetlb_page_bytes", bytes),
            }
        }
        GLEBE_SOURCE_THP => Source::Thp.into(),
        GLEBE_SOURCE_PLAIN => Source::Plain.into(),
        GLEBE_SOURCE_BLOCKS => Source::Blocks.into(),
        other => return bad("source", other),
    };
    if asked.source != GLEBE_SOURCE_HUGETLB && asked.hugetlb_page_bytes != 0 {
        return bad("hugetlb_page_bytes without GLEBE_SOURCE_HUGETLB", asked.hugetlb_page_bytes);
    }
    let mut options = Contig::options().source(source);
    options = match asked.grow_pool {
        GLEBE_GROW_AUTO => options,
        GLEBE_GROW_NO => options.grow_pool(false),
        GLEBE_GROW_YES => options.grow_pool(true),
        other => return bad("grow_pool", other),
    };
    if asked.required_run_bytes > 0 {
        options = options.require_run(Bytes::new(asked.required_run_bytes));
    }
    if asked.preferred_run_bytes > 0 {
        options = options.prefer_run(Bytes::new(asked.preferred_run_bytes));
    }
    if asked.search_bytes > 0 {
        options = options.search(Bytes::new(asked.search_bytes));
    }
    if asked.search_ms > 0 {
        options = options.search_time(Duration::from_millis(asked.search_ms));
    }
    if asked.lock_wait_ms > 0 {
        options = options.lock_patience(Duration::from_millis(asked.lock_wait_ms));
    }
    if asked.threads > 0 {
        let Ok(threads) = usize::try_from(asked.threads) else {
            return bad("threads", asked.threads);
        };
        options = options.threads(threads);
    }
    Ok(options)
}

fn builder(asked: &glebe_options) -> Result<reserve::Options<'static>, Failure> {
    let zero_ahead = Pages::new(asked.zero_ahead_pages);
    let room = Bytes::new(asked.room_bytes);
    let builder = Reserve::options().zero_ahead(zero_ahead).room(room);
    let builder = match asked.page_cache {
        GLEBE_CACHE_PLAIN => builder,
        GLEBE_CACHE_LZ4 => builder.page_cache(Codec::Lz4),
        GLEBE_CACHE_ZSTD => builder.page_cache(Codec::Zstd(Zstd::default())),
        other => return bad("page_cache", other),
    };
    match asked.writers {
        GLEBE_WRITERS_AUTO => Ok(builder),
        GLEBE_WRITERS_COUNTED => Ok(builder.writers(Writers::Counted)),
        other => bad("writers", other),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_create(
    options: *const glebe_options,
    reserve: *mut glebe_reserve,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, asked) = unsafe { (Out::new(reserve, "reserve")?, read(options)?) };
        let (builder, contig) = (builder(&asked)?, contig_options(&asked)?);
        let process = Process::create()?;
        let key = process.reserves.insert_with("reserves", || {
            Ok(builder.memory(contig).build(Bytes::new(asked.len_bytes))?)
        })?;
        Ok(out.set(process.handle(key, Kind::Reserve)))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_grow(
    reserve: glebe_reserve,
    len_bytes: u64,
    came_bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller's duty.
    unsafe { resize(reserve, came_bytes, |of| of.grow(Bytes::new(len_bytes))) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_shrink(
    reserve: glebe_reserve,
    len_bytes: u64,
    went_bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller's duty.
    unsafe { resize(reserve, went_bytes, |of| of.shrink(Bytes::new(len_bytes))) }
}

/// # Safety
/// `done` is null, or a word that the caller may write.
unsafe fn resize(
    reserve: glebe_reserve,
    done: *mut u64,
    change: impl FnOnce(&Reserve) -> Result<Resized, Error>,
) -> c_int {
    call(|| {
        // SAFETY: passed on to the caller.
        let out = (!done.is_null()).then(|| unsafe { Out::new(done, "bytes") }).transpose()?;
        let len = Process::with_reserve(reserve, |_, of| Ok(change(of)?))?.len;
        Ok(out.map_or(GLEBE_OK, |out| out.set(len.get())))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_destroy(reserve: glebe_reserve) -> c_int {
    call(|| {
        let (process, key) = Process::find(reserve, Kind::Reserve)?;
        let unused = || {
            // Promises first: one that is taken meanwhile is found as a block.
            let promises = process.promises.count(|of| of.reserve == reserve);
            let blocks = process.blocks.count(|of| of.reserve == reserve);
            let pools = process.pools.count(|of| of.reserve == reserve)
                + process.lent_zpools.count(|of| of.reserve == reserve);
            if (promises, blocks, pools) == (0, 0, 0) {
                return Ok(());
            }
            Err(Failure::Busy { blocks, promises, pools })
        };
        let unknown = Failure::BadHandle { kind: Kind::Reserve.name(), handle: reserve };
        process.reserves.remove_if(key, unused).unwrap_or(Err(unknown))?;
        Ok(GLEBE_OK)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_memory(
    reserve: glebe_reserve,
    memory: *mut glebe_memory,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(memory)? };
        let of = |reserve: &Reserve| -> Result<glebe_memory, Failure> {
            let all = reserve.certificate()?;
            let (source, hugetlb_page_bytes) = source_of(all.source);
            let longest = all.runs.iter().map(|run| run.pages.len()).max();
            Ok(glebe_memory {
                size: 0,
                len_pages: reserve.len().get(),
                longest_run_pages: longest.unwrap_or(1),
                source,
                hugetlb_page_bytes,
                pinned: (all.held_by != HeldBy::Nothing).into(),
                writers: match reserve.writers() {
                    Writers::Restartable => GLEBE_WRITERS_RESTARTABLE,
                    Writers::Counted => GLEBE_WRITERS_COUNTED,
                },
            })
        };
        Ok(out.set(&Process::with_reserve(reserve, |_, reserve| of(reserve))?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_largest_run(
    reserve: glebe_reserve,
    pages: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(pages, "pages")? };
        let largest = Process::with_reserve(reserve, |_, reserve| Ok(reserve.largest_run()?))?;
        Ok(out.set(largest.get()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_runs(
    reserve: glebe_reserve,
    runs: *mut glebe_run,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Array::new(runs, capacity, count, "runs")? };
        Process::with_reserve(reserve, |_, reserve| {
            Ok(out.set(reserve.certificate()?.runs.iter().map(|run| glebe_run {
                start_pages: run.pages.start(),
                len_pages: run.pages.len(),
                pfn: run.pfn.map_or(GLEBE_PFN_HIDDEN, |pfn| pfn.get()),
            })))
        })
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_why_not(
    reserve: glebe_reserve,
    what: u64,
    text: *mut c_char,
    text_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(text, text_len_bytes, needed_bytes)? };
        let why = Process::with_reserve(reserve, |_, reserve| match what {
            GLEBE_WHY_NOT_BETTER => Ok(reserve.contig().why_not_better().join("\n")),
            GLEBE_WHY_NOT_PINNED => Ok(reserve.contig().why_not_pinned().unwrap_or("").to_owned()),
            GLEBE_WHY_COUNTED => Ok(reserve.why_counted().unwrap_or("").to_owned()),
            other => bad("what", other),
        })?;
        text.set(&why)
    })
}
