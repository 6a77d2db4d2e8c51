//! `glebe_vrange`: the call of the volatile ranges patches, v10, on the caller's own memory.
//!
//! The patches' man page and code differ. This module follows their code in counting bytes, and
//! their man page in refusing arguments. A SIGBUS handler may make the call if the program's own
//! code touched a lost page. The call fails if the handler interrupted a fork or another call on
//! volatile memory. Cost: a call reads the list of mappings, so it suits ranges of many pages.
//! Source: "vrange: Add vrange support to mm_structs" and "vrange: Add basic functions to purge
//! volatile pages" (Minchan Kim and John Stultz, linux-mm, January 2014).
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};

use glebe::extent::Extent;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::Error;

use super::adopted::{apply, apply_strictly, number};
use super::claims::range;
use super::regions::follow_forks;
use crate::abi::*;
use crate::boundary::{call, Out, Probed};
use crate::failure::Failure;

const PURGED: &str = "purged";

/// Checks the arguments. Returns true to mark or false to unmark, and the pages: the whole pages of
/// the range, up to `most` bytes.
fn checked(addr: usize, length: usize, mode: c_int, most: u64) -> Result<(bool, Extent), Failure> {
    let to_volatile = match mode {
        GLEBE_VRANGE_VOLATILE => true,
        GLEBE_VRANGE_NONVOLATILE => false,
        other => return Err(Failure::bad("mode", other as u32 as u64)),
    };
    let page = page_size();
    let (offset, granule) = (Bytes::new(addr as u64), page.bytes());
    if offset.get() % granule.get() != 0 {
        return Err(Error::Unaligned { offset, granule }.into());
    }
    let end = range(addr as u64, length as u64)?.end;
    let (start, pages) = (number(addr), end.pages_down(page).get() - number(addr));
    let most = Bytes::new(most).pages_down(page).get();
    let asked = Extent::new(start, pages.min(most)).ok_or(Error::Empty)?;
    Ok((to_volatile, asked))
}

#[no_mangle]
pub extern "C" fn glebe_vrange(
    start: *mut c_void,
    length: usize,
    mode: c_int,
    purged: Out<c_int>,
) -> c_int {
    call(|| as_patches(start.expose_provenance(), length, mode, purged))
}

/// Does what the patches' call does. Returns the number of bytes marked or unmarked.
pub(super) fn as_patches(
    start: usize,
    length: usize,
    mode: c_int,
    purged: Out<c_int>,
) -> Result<c_int, Failure> {
    let (to_volatile, asked) = checked(start, length, mode, c_int::MAX as u64)?;
    let purged = Probed::new(purged, PURGED)?;
    follow_forks()?;
    let (pages, lost) = apply(to_volatile, asked)?;
    purged.set(lost.into())?;
    let bytes = Pages::new(pages).bytes(page_size());
    Ok(c_int::try_from(bytes.get()).unwrap_or(c_int::MAX))
}

#[no_mangle]
pub extern "C" fn glebe_vrange_strict(
    start: *mut c_void,
    length: usize,
    mode: c_int,
    purged: Out<c_int>,
) -> c_int {
    call(|| {
        let (addr, granule) = (start.expose_provenance(), page_size().bytes());
        let (to_volatile, asked) = checked(addr, length, mode, u64::MAX)?;
        if length as u64 % granule.get() != 0 {
            let offset = Bytes::new((addr + length) as u64);
            return Err(Error::Unaligned { offset, granule }.into());
        }
        let purged = Probed::new(purged, PURGED)?;
        follow_forks()?;
        let lost = apply_strictly(to_volatile, asked)?;
        purged.set(lost.into())?;
        Ok(GLEBE_OK)
    })
}
