//! `glebe_mmap_contig` replaces the flag `MAP_CONTIG` of mmap(2), which the kernel never got.
//!
//! Source: "[RFC PATCH 0/3] Add mmap(MAP_CONTIG) support" (Mike Kravetz, linux-mm, October 2017),
//! mmap(2), posix_mem_offset(3p).
//!
//! # Safety
//! The protection of a mapping changes before the caller gets its address. This module never
//! touches its bytes.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use glebe::contig::{Contig, Error, HeldBy, Source};
use glebe::internal::sys::machine::hugetlb;
use glebe::internal::sys::memory::place::{protect, Flags, Protection};
use glebe::internal::sys::page_size;
use glebe::units::Bytes;

use crate::abi::*;
use crate::boundary::{call, call_for_address, Array, Out};
use crate::failure::Failure;
use crate::mapped::Mapped;
use crate::place::{limited, nodes_as_told, place_of, verify};
use crate::process::Process;
use crate::table::lock;

/// Limits of `glebe_mmap_contig`: bytes to search, ms to search, and ms to wait for other processes
/// that change the hugetlb pools. 0 means the library's default.
static LIMITS: Mutex<[u64; 3]> = Mutex::new([0; 3]);

#[cold]
fn unmapped(addr: usize) -> Failure {
    let text = format!("{addr:#x} is no address of a contiguous mapping");
    Failure::new(GLEBE_ERROR_UNMAPPED, text)
}

fn map(
    addr: usize,
    len: u64,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
) -> Result<*mut c_void, Failure> {
    let page = page_size();
    let protection = Protection::of_bits(prot).ok_or_else(|| Failure::bad("prot", prot as u64))?;
    let asked = Flags::of_bits(flags).map_err(|bits| Failure::bad("flags", bits as u64))?;
    if (asked.anonymous, fd) != (true, -1) {
        return Err(Failure::bad("fd: it is -1, with MAP_ANONYMOUS", fd as u64));
    }
    if off < 0 || off as u64 % page.bytes().get() != 0 {
        return Err(Failure::bad("off", off as u64));
    }
    let too_long = || Error::TooLarge {
        asked: Bytes::new(len),
        available: Bytes::new(isize::MAX.unsigned_abs() as u64),
        elsewhere: None,
    };
    let whole = Bytes::new(len).pages_up(page).checked_bytes(page).ok_or_else(too_long)?;
    let mut options = limited(Contig::options().require_run(whole), *lock(&LIMITS));
    if let Some(size) = asked.hugetlb {
        let size = size.unwrap_or_else(hugetlb::smallest);
        options = options.source(Source::Hugetlb(size));
    }
    if asked.at_address {
        options = options.at(addr);
    }
    let process = Process::create()?;
    let contig = options.build(whole)?;
    if contig.held_by() == HeldBy::Nothing {
        let why = contig.why_not_pinned().unwrap_or("no pin was tried");
        let text = format!("nothing would hold the pages in their frames: {why}");
        return Err(Failure::new(GLEBE_ERROR_NO_SOURCE, text));
    }
    let (start, mapped) = (contig.mapping().addr(), contig.len());
    if !matches!(protection, Protection { read: true, write: true, execute: false }) {
        // SAFETY: the range is all of the new mapping, whose address nobody has. Later only the
        // caller uses its bytes.
        unsafe { protect(start, mapped, protection) }.map_err(Error::from)?;
    }
    let address = contig.mapping().as_ptr().cast();
    let mapping = Mapped::new(contig);
    // The caller must have removed `stale` mappings by munmap(2). A drop would unmap the new pages.
    let mut all = lock(&process.contigs);
    let below = all.range(..start + mapped.as_usize());
    let over = below.filter(|(at, other)| **at + other.contig.len().as_usize() > start);
    let stale: Vec<usize> = over.map(|(at, _)| *at).collect();
    stale.into_iter().for_each(|at| std::mem::forget(all.remove(&at)));
    all.insert(start, mapping);
    Ok(address)
}

#[no_mangle]
pub extern "C" fn glebe_mmap_contig(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
) -> *mut c_void {
    call_for_address(|| map(addr.addr(), len as u64, prot, flags, fd, off))
}

#[no_mangle]
pub extern "C" fn glebe_mmap_contig_limits(
    search_bytes: u64,
    search_ms: u64,
    lock_wait_ms: u64,
) -> c_int {
    *lock(&LIMITS) = [search_bytes, search_ms, lock_wait_ms];
    GLEBE_OK
}

#[no_mangle]
pub extern "C" fn glebe_munmap_contig(addr: *mut c_void, len: usize) -> c_int {
    call(|| {
        let unknown = || unmapped(addr.addr());
        let process = Process::own()?.ok_or_else(unknown)?;
        let mut contigs = lock(&process.contigs);
        let contig = &contigs.get(&addr.addr()).ok_or_else(unknown)?.contig;
        let (given, mapped, spare) = (len as u64, contig.len().get(), contig.spare().get());
        let page = page_size();
        let rounded = Bytes::new(given).pages_up(page).checked_bytes(page).map(Bytes::get);
        if rounded != Some(mapped) && rounded != Some(mapped - spare) {
            let text = format!("a length of {given}; the mapping has {mapped}");
            return Err(Failure::new(GLEBE_ERROR_BAD_LEN, text));
        }
        let gone = contigs.remove(&addr.addr());
        // The list is unlocked before the drop, because unmapping may wait for the lock of the
        // hugetlb pools.
        drop(contigs);
        drop(gone);
        Ok(GLEBE_OK)
    })
}

/// Calls `look` with the mapping that contains `addr`, and with the offset of `addr` in the
/// mapping.
fn look<R>(
    addr: usize,
    look: impl FnOnce(&Contig, Bytes) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let unknown = || unmapped(addr);
    let process = Process::own()?.ok_or_else(unknown)?;
    let contigs = lock(&process.contigs);
    let (start, Mapped { contig, .. }) = contigs.range(..=addr).next_back().ok_or_else(unknown)?;
    let offset = Bytes::new((addr - start) as u64);
    if offset >= contig.len() {
        return Err(unknown());
    }
    look(contig, offset)
}

#[no_mangle]
pub extern "C" fn glebe_contig_query(addr: *const c_void, contig: Out<glebe_contig>) -> c_int {
    call(|| {
        let out = contig.sized()?;
        let unknown = || unmapped(addr.addr());
        let place = |contig: &Contig, offset| place_of(contig, offset).ok_or_else(unknown);
        Ok(out.set(&look(addr.addr(), place)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_contig_verify(
    addr: *const c_void,
    drifts: Out<glebe_drift>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(drifts, capacity, count, "drifts")?;
        out.set(look(addr.addr(), |contig, _| verify(contig))?.into_iter());
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_contig_nodes(
    addr: *const c_void,
    nodes: Out<glebe_on_node>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(nodes, capacity, count, "nodes")?;
        let all = look(addr.addr(), |contig, _| Ok(contig.nodes().map_err(Error::from)?))?;
        out.set(nodes_as_told(all));
        Ok(GLEBE_OK)
    })
}
