//! Reports the position of memory, its frames, and what holds the memory in these frames.
//!
//! Positions are base pages from the start of a reserve or a mapping. Frames are those at the time
//! when the memory was mapped; [`verify`] reads them again. Nodes are those at the call.
#![allow(unsafe_code)] // exported names

use std::ffi::c_int;
use std::time::Duration;

use glebe::contig::{Contig, Drift, HeldBy, Location, Node, Options, Proof, Source};
use glebe::extent::Extent;
use glebe::page_size;
use glebe::reserve::{Footing, Reserve};
use glebe::units::{Bytes, Pages, Pfn};

use crate::abi::*;
use crate::boundary::{call, Array, Out};
use crate::failure::Failure;
use crate::process::{with, Of};

/// Sets the limits that are not 0: bytes to search, ms to search, and ms to wait for other
/// processes that change the hugetlb pools.
pub(crate) fn limited(
    mut options: Options,
    [search_bytes, search_ms, lock_wait_ms]: [u64; 3],
) -> Options {
    if search_bytes > 0 {
        options = options.search(Bytes::new(search_bytes));
    }
    if search_ms > 0 {
        options = options.search_time(Duration::from_millis(search_ms));
    }
    if lock_wait_ms > 0 {
        options = options.lock_patience(Duration::from_millis(lock_wait_ms));
    }
    options
}

/// Returns the source's number, and a hugetlb pool's page size in bytes, 0 for other sources.
pub(crate) fn source_of(source: Source) -> (u64, u64) {
    match source {
        Source::Hugetlb(size) => (GLEBE_SOURCE_HUGETLB, size.bytes().get()),
        Source::Thp => (GLEBE_SOURCE_THP, 0),
        Source::Blocks => (GLEBE_SOURCE_BLOCKS, 0),
        // C cannot ask for `DmaHeap` or `Divided`.
        Source::Plain | Source::DmaHeap | Source::Divided => (GLEBE_SOURCE_PLAIN, 0),
    }
}

/// Returns `None` beyond the end of the mapping.
pub(crate) fn place_of(contig: &Contig, offset: Bytes) -> Option<glebe_contig> {
    let place = contig.query(contig.mapping().addr().checked_add(offset.as_usize())?)?;
    let (source, held_by, len) = (contig.source(), contig.held_by(), contig.len());
    Some(told(&place, Footing { source, held_by, len }, offset))
}

fn told(place: &Location, on: Footing, offset: Bytes) -> glebe_contig {
    let Footing { source, held_by, len } = on;
    let (source, hugetlb_page_bytes) = source_of(source);
    glebe_contig {
        size: 0,
        offset_bytes: place.offset_in_run.get(),
        contiguous_bytes: place.contiguous.get(),
        run_bytes: place.run_len.get(),
        pfn: place.pfn.map_or(GLEBE_PFN_HIDDEN, Pfn::get),
        held_by: match held_by {
            HeldBy::HugetlbPool => GLEBE_HELD_BY_HUGETLB_POOL,
            HeldBy::MovablePool => GLEBE_HELD_BY_MOVABLE_POOL,
            HeldBy::LongTermPin => GLEBE_HELD_BY_LONG_TERM_PIN,
            HeldBy::DmaBuffer | HeldBy::Nothing => GLEBE_HELD_BY_NOTHING,
        },
        source,
        hugetlb_page_bytes,
        mapped_bytes: len.get(),
        position_pages: offset.pages_down(page_size()).get(),
    }
}

pub(crate) fn verify(contig: &Contig) -> Result<Vec<glebe_drift>, Failure> {
    Ok(drifts_of(&contig.verify().map_err(glebe::contig::Error::from)?, contig.proof()))
}

fn drifts_of(drifts: &[Drift], proof: Proof) -> Vec<glebe_drift> {
    let were_hidden = proof != Proof::Frames;
    let drift = |drift: &Drift| glebe_drift {
        start_pages: drift.pages.start(),
        len_pages: drift.pages.len(),
        was_pfn: if were_hidden { GLEBE_PFN_HIDDEN } else { drift.was.get() },
        now_pfn: drift.now.map_or(GLEBE_PFN_GONE, Pfn::get),
    };
    drifts.iter().map(drift).collect()
}

pub(crate) fn nodes_as_told(
    nodes: Vec<(Extent, Node)>,
) -> impl ExactSizeIterator<Item = glebe_on_node> {
    nodes.into_iter().map(|(pages, node)| glebe_on_node {
        start_pages: pages.start(),
        len_pages: pages.len(),
        node: node.0.into(),
    })
}

#[no_mangle]
pub extern "C" fn glebe_block_query(
    block: glebe_block,
    offset_bytes: u64,
    contig: Out<glebe_contig>,
) -> c_int {
    call(|| {
        let out = contig.sized()?;
        let place = with(block, |Of { object: of, .. }| {
            let page = page_size();
            let len = of.pages().bytes(page).get();
            let beyond = || Failure::beyond("block in bytes", offset_bytes, len);
            let rest = len.checked_sub(offset_bytes).filter(|rest| *rest > 0);
            let rest = rest.ok_or_else(beyond)?;
            let start = Pages::new(of.extent().start()).bytes(page);
            let found = of.locate(Bytes::new(offset_bytes))?.ok_or_else(beyond)?;
            let mut place = told(&found, of.footing()?, start + Bytes::new(offset_bytes));
            place.contiguous_bytes = place.contiguous_bytes.min(rest);
            Ok(place)
        })?;
        Ok(out.set(&place))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_query(
    reserve: glebe_reserve,
    position_pages: u64,
    contig: Out<glebe_contig>,
) -> c_int {
    call(|| {
        let out = contig.sized()?;
        let place = with(reserve, |reserve| {
            let beyond =
                || Failure::beyond("reserve in pages", position_pages, reserve.len().get());
            let offset = Pages::new(position_pages).checked_bytes(page_size());
            let offset = offset.ok_or_else(beyond)?;
            let found = reserve.locate(offset)?.ok_or_else(beyond)?;
            Ok(told(&found, reserve.footing()?, offset))
        })?;
        Ok(out.set(&place))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_nodes(
    reserve: glebe_reserve,
    nodes: Out<glebe_on_node>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(nodes, capacity, count, "nodes")?;
        let all = with(reserve, |reserve| Ok(reserve.nodes()?))?;
        out.set(nodes_as_told(all));
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_verify(
    reserve: glebe_reserve,
    drifts: Out<glebe_drift>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(drifts, capacity, count, "drifts")?;
        let drifts = |of: &Reserve| Ok(drifts_of(&of.verify()?, of.contig().proof()));
        out.set(with(reserve, drifts)?.into_iter());
        Ok(GLEBE_OK)
    })
}
