//! Where memory lies: positions, frames, what holds them, and what is proved of that.
//!
//! Positions are base pages from the start of a reserve or a mapping. Frames are as they were when
//! the memory was made; [`verify`] looks again.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use glebe::contig::{Certificate, Contig, Drift, HeldBy, Location, Proof, Source};
use glebe::reserve::{Footing, Reserve};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages, Pfn};

use crate::abi::*;
use crate::boundary::{call, Array, Fill, Sized64, Text};
use crate::failure::Failure;
use crate::process::Process;
use crate::table::Kind;

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_contig {
    const NAME: &'static str = "glebe_contig";
    const LEAST: u64 = 32;
}

/// The number of a source, and the bytes of its page where that is a hugetlb pool's.
pub(crate) fn source_of(source: Source) -> (u64, u64) {
    match source {
        Source::Hugetlb(size) => (GLEBE_SOURCE_HUGETLB, size.bytes().get()),
        Source::Thp => (GLEBE_SOURCE_THP, 0),
        Source::Blocks => (GLEBE_SOURCE_BLOCKS, 0),
        // No others can be asked for here.
        Source::Plain | Source::DmaHeap | Source::Divided => (GLEBE_SOURCE_PLAIN, 0),
    }
}

/// What is known of the byte at `offset` of a mapping; `None` beyond its end.
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

/// What is no longer in the frames in which it was.
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

/// The certificate of a mapping, as JSON.
pub(crate) fn certificate(contig: &Contig, frames: u64) -> Result<String, Failure> {
    json_of(contig.certificate(), frames)
}

fn json_of(all: Certificate, frames: u64) -> Result<String, Failure> {
    match frames {
        GLEBE_FRAMES_SHOWN => Ok(all.to_json()),
        GLEBE_FRAMES_LEFT_OUT => Ok(all.without_frames().to_json()),
        value => Err(Failure::BadArgument { name: "frames", value }),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_block_query(
    block: glebe_block,
    offset_bytes: u64,
    contig: *mut glebe_contig,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(contig)? };
        let (process, key) = Process::find(block, Kind::Block)?;
        let unknown = || Failure::BadHandle { kind: Kind::Block.name(), handle: block };
        let held = process.blocks.hold(key).ok_or_else(unknown)?;
        let of = &held.get().ok_or_else(unknown)?.object;
        let page = page_size();
        let len = of.pages().bytes(page).get();
        let rest = len.checked_sub(offset_bytes).filter(|rest| *rest > 0);
        let beyond = || Failure::Beyond { what: "block in bytes", at: offset_bytes, len };
        let rest = rest.ok_or_else(beyond)?;
        let start = Pages::new(of.extent().start()).bytes(page);
        let found = of.locate(Bytes::new(offset_bytes))?.ok_or_else(beyond)?;
        let mut place = told(&found, of.footing()?, start + Bytes::new(offset_bytes));
        // What follows the block is not the caller's.
        place.contiguous_bytes = place.contiguous_bytes.min(rest);
        Ok(out.set(&place))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_query(
    reserve: glebe_reserve,
    position_pages: u64,
    contig: *mut glebe_contig,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(contig)? };
        let place = Process::with_reserve(reserve, |_, reserve| {
            let len = reserve.len().get();
            let offset = Pages::new(position_pages).checked_bytes(page_size());
            let beyond = || Failure::Beyond { what: "reserve in pages", at: position_pages, len };
            let offset = offset.ok_or_else(beyond)?;
            let found = reserve.locate(offset)?.ok_or_else(beyond)?;
            Ok(told(&found, reserve.footing()?, offset))
        })?;
        Ok(out.set(&place))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_verify(
    reserve: glebe_reserve,
    drifts: *mut glebe_drift,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Array::new(drifts, capacity, count, "drifts")? };
        let all = Process::with_reserve(reserve, |_, reserve| {
            Ok(drifts_of(&reserve.verify()?, reserve.contig().proof()))
        })?;
        Ok(out.set(all.into_iter()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_certificate(
    reserve: glebe_reserve,
    frames: u64,
    text: *mut c_char,
    text_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(text, text_len_bytes, needed_bytes)? };
        let json = |reserve: &Reserve| json_of(reserve.certificate()?, frames);
        text.set(Process::with_reserve(reserve, |_, reserve| json(reserve))?)
    })
}
