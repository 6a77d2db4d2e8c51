//! `glebe_mmap_contig`: the flag `MAP_CONTIG` that the kernel never had, as a call.
//!
//! Mappings are kept by their first address, in the table of the process that made them. Source:
//! "[RFC PATCH 0/3] Add mmap(MAP_CONTIG) support" (Mike Kravetz, linux-mm, October 2017), mmap(2),
//! posix_mem_offset(3p).
//!
//! # Safety
//! A mapping's protection is changed before anybody has its address, and its bytes are never used
//! here.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

use glebe::contig::{Contig, Error, HeldBy, Source};
use glebe::sys::place::{is_readable, protect, Flags, Protection};
use glebe::sys::{errno, hugetlb, page_size};
use glebe::units::Bytes;

use crate::abi::*;
use crate::boundary::{call, call_for_address, Array, Out, Text};
use crate::descriptor::copy_of;
use crate::failure::Failure;
use crate::mapped::{Contigs, Mapped};
use crate::place::{certificate, limited, place_of, verify};
use crate::process::Process;

/// `/dev/zero`: major 1, minor 5.
const ZERO_DEVICE: u64 = 1 << 8 | 5;

/// What a call may look at for a run, in bytes; for how long it may look, and how long wait for
/// others that change the pools, both in ms. 0 for the library's own.
static SEARCH_BYTES: AtomicU64 = AtomicU64::new(0);
static SEARCH_MS: AtomicU64 = AtomicU64::new(0);
static LOCK_WAIT_MS: AtomicU64 = AtomicU64::new(0);

fn locked(contigs: &Contigs) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
    contigs.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn unmapped(addr: usize) -> Failure {
    let text = format!("{addr:#x} is no address of a contiguous mapping");
    Failure::new(GLEBE_ERROR_UNMAPPED, text)
}

fn bad(name: &'static str, value: i64) -> Failure {
    Failure::bad(name, value as u64)
}

/// Looks at a descriptor that is to stand for memory of no file.
fn check_descriptor(fd: c_int, anonymous: bool) -> Result<(), Failure> {
    let refused = |errno, why| Failure::BadDescriptor { fd, errno, why };
    match (fd, anonymous) {
        (-1, true) => return Ok(()),
        (-1, false) => return Err(refused(errno::EBADF, "-1 goes with MAP_ANONYMOUS only")),
        _ => {}
    }
    let file = std::fs::File::from(copy_of(fd)?);
    let zero = file
        .metadata()
        .is_ok_and(|meta| meta.file_type().is_char_device() && meta.rdev() == ZERO_DEVICE);
    match (is_readable(&file), zero) {
        (Err(_), _) => Err(refused(errno::EBADF, "open for its path alone")),
        (_, false) => Err(refused(errno::ENODEV, "only /dev/zero can be contiguous")),
        (Ok(false), true) => Err(refused(errno::EACCES, "not open for reading")),
        (Ok(true), true) => Ok(()),
    }
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
    let protection = Protection::of_bits(prot).ok_or_else(|| bad("prot", prot.into()))?;
    let asked = Flags::of_bits(flags).map_err(|bits| bad("flags", bits.into()))?;
    check_descriptor(fd, asked.anonymous)?;
    if off < 0 || off as u64 % page.bytes().get() != 0 {
        return Err(bad("off", off));
    }
    let too_long = || Error::TooLarge {
        asked: Bytes::new(len),
        available: Bytes::new(isize::MAX.unsigned_abs() as u64),
    };
    let whole = Bytes::new(len).pages_up(page).checked_bytes(page).ok_or_else(too_long)?;
    let [bytes, time, wait] =
        [&SEARCH_BYTES, &SEARCH_MS, &LOCK_WAIT_MS].map(|limit| limit.load(Ordering::Relaxed));
    let mut options = limited(Contig::options().require_run(whole), bytes, time, wait);
    if let Some(size) = asked.hugetlb {
        let size = size.unwrap_or_else(hugetlb::smallest);
        options = options.source(Source::Hugetlb(size));
    }
    if asked.at_address {
        options = options.at(addr);
    }
    let process = Process::create()?;
    let contig = options.map(whole)?;
    if contig.held_by() == HeldBy::Nothing {
        let why = contig.why_not_pinned().unwrap_or("no pin was tried");
        let text = format!("nothing would hold the pages in their frames: {why}");
        return Err(Failure::new(GLEBE_ERROR_NO_SOURCE, text));
    }
    let (start, mapped) = (contig.mapping().addr(), contig.len());
    if !matches!(protection, Protection { read: true, write: true, execute: false }) {
        // SAFETY: all of the mapping just made, whose address nobody has; its bytes are the
        // caller's alone from here on.
        unsafe { protect(start, mapped, protection) }.map_err(Error::from)?;
    }
    let address = contig.mapping().as_ptr().cast();
    let mapping = Mapped::new(contig);
    // Earlier ones that the caller unmapped by munmap are left here: their places are the new
    // one's.
    let mut all = locked(&process.contigs);
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
    SEARCH_BYTES.store(search_bytes, Ordering::Relaxed);
    SEARCH_MS.store(search_ms, Ordering::Relaxed);
    LOCK_WAIT_MS.store(lock_wait_ms, Ordering::Relaxed);
    GLEBE_OK
}

#[no_mangle]
pub extern "C" fn glebe_munmap_contig(addr: *mut c_void, len: usize) -> c_int {
    call(|| {
        let unknown = || unmapped(addr.addr());
        let process = Process::own()?.ok_or_else(unknown)?;
        let mut contigs = locked(&process.contigs);
        let contig = &contigs.get(&addr.addr()).ok_or_else(unknown)?.contig;
        let (given, mapped, spare) = (len as u64, contig.len().get(), contig.spare().get());
        let page = page_size();
        let rounded = Bytes::new(given).pages_up(page).checked_bytes(page).map(Bytes::get);
        if rounded != Some(mapped) && rounded != Some(mapped - spare) {
            let text = format!("a length of {given}; the mapping has {mapped}");
            return Err(Failure::new(GLEBE_ERROR_BAD_LEN, text));
        }
        let gone = contigs.remove(&addr.addr());
        // Unmapping may wait for the pools' lock: not under this one.
        drop(contigs);
        drop(gone);
        Ok(GLEBE_OK)
    })
}

/// Calls `look` on the mapping that has `addr`, and with how far in that is.
fn look<R>(
    addr: usize,
    look: impl FnOnce(&Contig, Bytes) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let unknown = || unmapped(addr);
    let process = Process::own()?.ok_or_else(unknown)?;
    let contigs = locked(&process.contigs);
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
pub extern "C" fn glebe_contig_certificate(
    addr: *const c_void,
    frames: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        text.set(look(addr.addr(), |contig, _| certificate(contig, frames))?)
    })
}
