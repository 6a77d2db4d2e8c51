//! Makes, resizes, describes and ends reserves.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int};

use glebe::contig::{Contig, HeldBy, Node, Options, Source};
use glebe::internal::sys::machine::hugetlb;
use glebe::reserve::{self, Reserve, ReserveError, Resized, Writers};
use glebe::units::{Bytes, PageSize, Pages};
use glebe::zpool::{Codec, Zstd};

use crate::abi::*;
use crate::boundary::{call, Array, In, Out, Text};
use crate::failure::Failure;
use crate::place::{limited, source_of};
use crate::process::{each, hold, insert, with, Process};

fn source(asked: &glebe_reserve_options) -> Result<Option<Source>, Failure> {
    let bytes = asked.hugetlb_page_bytes;
    if asked.source != GLEBE_SOURCE_HUGETLB && bytes != 0 {
        return Err(Failure::bad("hugetlb_page_bytes without GLEBE_SOURCE_HUGETLB", bytes));
    }
    Ok(match asked.source {
        GLEBE_SOURCE_AUTO => None,
        GLEBE_SOURCE_HUGETLB if bytes == 0 => Some(Source::Hugetlb(hugetlb::smallest())),
        GLEBE_SOURCE_HUGETLB => {
            let size = PageSize::new(bytes);
            Some(Source::Hugetlb(size.ok_or_else(|| Failure::bad("hugetlb_page_bytes", bytes))?))
        }
        GLEBE_SOURCE_THP => Some(Source::Thp),
        GLEBE_SOURCE_PLAIN => Some(Source::Plain),
        GLEBE_SOURCE_BLOCKS => Some(Source::Blocks),
        other => return Err(Failure::bad("source", other)),
    })
}

fn placed(options: Options, asked: &glebe_reserve_options) -> Result<Options, Failure> {
    let node = u32::try_from(asked.node).map(Node);
    let node = node.map_err(|_| Failure::bad("node", asked.node))?;
    let (is_among, mask) = (asked.on_node == GLEBE_NODE_AMONG, asked.node_mask);
    if mask != 0 && !is_among {
        return Err(Failure::bad("node_mask without GLEBE_NODE_AMONG", mask));
    }
    match asked.on_node {
        GLEBE_NODE_ANY if asked.node != 0 => Err(Failure::bad("node without on_node", asked.node)),
        GLEBE_NODE_ANY => Ok(options),
        GLEBE_NODE_AMONG if asked.node != 0 => {
            Err(Failure::bad("node with GLEBE_NODE_AMONG", asked.node))
        }
        GLEBE_NODE_AMONG => {
            let is_set = |number: &u32| mask >> number & 1 == 1;
            Ok(options.nodes((0..u64::BITS).filter(is_set).map(Node)))
        }
        GLEBE_NODE_ONLY => Ok(options.node(node)),
        GLEBE_NODE_PREFER => Ok(options.prefer_node(node)),
        other => Err(Failure::bad("on_node", other)),
    }
}

fn contig_options(asked: &glebe_reserve_options) -> Result<Options, Failure> {
    let options = placed(Contig::options().source(source(asked)?), asked)?;
    let mut options = match asked.grow_pool {
        GLEBE_GROW_AUTO => options,
        GLEBE_GROW_NO => options.grow_pool(false),
        GLEBE_GROW_YES => options.grow_pool(true),
        other => return Err(Failure::bad("grow_pool", other)),
    };
    if asked.required_run_bytes > 0 {
        options = options.require_run(Bytes::new(asked.required_run_bytes));
    }
    if asked.preferred_run_bytes > 0 {
        options = options.prefer_run(Bytes::new(asked.preferred_run_bytes));
    }
    if asked.threads > 0 {
        options = options.threads(usize::try_from(asked.threads).unwrap_or(usize::MAX));
    }
    Ok(limited(options, [asked.search_bytes, asked.search_ms, asked.lock_wait_ms]))
}

fn options(asked: &glebe_reserve_options) -> Result<reserve::ReserveOptions, Failure> {
    let codec = match asked.page_cache {
        GLEBE_CODEC_AUTO | GLEBE_CODEC_NONE => Codec::None,
        GLEBE_CODEC_LZ4 => Codec::Lz4,
        GLEBE_CODEC_ZSTD => Codec::Zstd(Zstd::default()),
        other => return Err(Failure::bad("page_cache", other)),
    };
    let options = Reserve::options().memory(contig_options(asked)?).page_cache(codec);
    let zero_ahead = Pages::new(asked.zero_ahead_pages);
    Ok(options.zero_ahead(zero_ahead).room(Bytes::new(asked.room_bytes)))
}

#[no_mangle]
pub extern "C" fn glebe_reserve_new(
    len_bytes: u64,
    options: In<glebe_reserve_options>,
    reserve: Out<glebe_reserve>,
) -> c_int {
    call(|| {
        let (out, asked) = (reserve.checked("reserve")?, options.read()?);
        let options = self::options(&asked)?;
        let make = || Ok(each(options.build(Bytes::new(len_bytes))?));
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

fn resize(
    reserve: glebe_reserve,
    done: Out<u64>,
    change: impl FnOnce(&Reserve) -> Result<Resized, ReserveError>,
) -> Result<c_int, Failure> {
    Ok(done.set(with(reserve, |of| Ok(change(of)?))?.len.get()))
}

#[no_mangle]
pub extern "C" fn glebe_reserve_grow(
    reserve: glebe_reserve,
    len_bytes: u64,
    came_bytes: Out<u64>,
) -> c_int {
    call(|| resize(reserve, came_bytes, |of| of.grow(Bytes::new(len_bytes))))
}

#[no_mangle]
pub extern "C" fn glebe_reserve_shrink(
    reserve: glebe_reserve,
    len_bytes: u64,
    went_bytes: Out<u64>,
) -> c_int {
    call(|| resize(reserve, went_bytes, |of| of.shrink(Bytes::new(len_bytes))))
}

#[no_mangle]
pub extern "C" fn glebe_reserve_free(reserve: glebe_reserve) -> c_int {
    call(|| {
        let (process, mut held) = hold(reserve)?;
        // Counts promises before blocks, because a promise may become a block between the counts.
        let promises = process.promises.count(|of| of.reserve == reserve);
        let blocks = process.blocks.count(|of| of.reserve == reserve);
        let caches = process.caches.count(|of| of.reserve == reserve);
        let pools = process.zpools.count(|of| of.reserve == reserve);
        // Counts swap caches before areas and stores, because a cache may make an area or store and
        // be freed between the counts.
        let swaps = process.swap_caches.count(|of| of.reserve == reserve)
            + process.areas.count(|of| of.reserve == reserve)
            + process.stores.count(|of| of.reserve == reserve);
        if promises + blocks + caches + pools + swaps > 0 {
            let text = format!(
                "the reserve still has {blocks} blocks, {promises} promises, {caches} caches, \
                {pools} object pools and {swaps} swap caches, areas and stores; free them first"
            );
            return Err(Failure::new(GLEBE_ERROR_BUSY, text));
        }
        let ended = held.take();
        drop(held);
        drop(ended);
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_memory(reserve: glebe_reserve, memory: Out<glebe_memory>) -> c_int {
    call(|| {
        let out = memory.sized()?;
        let memory = with(reserve, |of| {
            let all = of.certificate()?;
            let (source, hugetlb_page_bytes) = source_of(all.source);
            let longest = all.runs.iter().map(|run| run.pages.len()).max();
            Ok(glebe_memory {
                size: 0,
                len_pages: of.len().get(),
                longest_run_pages: longest.unwrap_or(1),
                source,
                hugetlb_page_bytes,
                pinned: (all.held_by != HeldBy::Nothing).into(),
                writers: match of.writers() {
                    Writers::Restartable => GLEBE_WRITERS_RESTARTABLE,
                    Writers::Counted => GLEBE_WRITERS_COUNTED,
                },
            })
        })?;
        Ok(out.set(&memory))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_largest_run(reserve: glebe_reserve, pages: Out<u64>) -> c_int {
    call(|| {
        let out = pages.checked("pages")?;
        Ok(out.set(with(reserve, |of| Ok(of.largest_run()?))?.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_runs(
    reserve: glebe_reserve,
    runs: Out<glebe_run>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(runs, capacity, count, "runs")?;
        let all = with(reserve, |of| Ok(of.certificate()?.runs))?;
        out.set(all.iter().map(|run| glebe_run {
            start_pages: run.pages.start(),
            len_pages: run.pages.len(),
            pfn: run.pfn.map_or(GLEBE_PFN_HIDDEN, |pfn| pfn.get()),
        }));
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_why_not(
    reserve: glebe_reserve,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        text.set(
            with(reserve, |of| {
                let better = of.contig().why_not_better().iter().map(ToString::to_string);
                let rest = [of.contig().why_not_pinned(), of.why_counted()];
                Ok(better.chain(rest.into_iter().flatten().map(str::to_owned)).collect::<Vec<_>>())
            })?
            .join("\n"),
        )
    })
}
