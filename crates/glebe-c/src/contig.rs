//! `glebe_mmap_contig`: the flag `MAP_CONTIG` that the kernel never had, as a call.
//!
//! Mappings are kept by their first address, in the table of the process that made them. Source:
//! "[RFC PATCH 0/3] Add mmap(MAP_CONTIG) support" (Mike Kravetz, linux-mm, October 2017), mmap(2),
//! posix_mem_offset(3p).
//!
//! # Safety
//! Pointers are what the header says of them. A mapping's protection is changed before anybody has
//! its address, and its bytes are never used here.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use glebe::contig::{Contig, Error, HeldBy, Options, PoolLock, Source};
use glebe::sys::place::{is_readable, protect, Flags, Protection};
use glebe::sys::{errno, hugetlb, page_size};
use glebe::units::Bytes;

use crate::abi::*;
use crate::boundary::{call, call_for_address, Array, Fill, Text};
use crate::failure::Failure;
use crate::mapped::{Contigs, Mapped};
use crate::place::{certificate, place_of, verify};
use crate::process::Process;

/// `/dev/zero`: major 1, minor 5.
const ZERO_DEVICE: u64 = 1 << 8 | 5;

/// How long a call may wait for others that change the pools.
static LOCK_WAIT_MS: AtomicU64 = AtomicU64::new(PoolLock::PATIENCE.as_millis() as u64);

/// How much a call may look at for a run, in bytes, and how long, in ms; 0 for the library's own.
static SEARCH_BYTES: AtomicU64 = AtomicU64::new(0);
static SEARCH_MS: AtomicU64 = AtomicU64::new(0);

/// What the caller allows each call.
fn within_bounds(options: Options) -> Options {
    let [wait, bytes, time] =
        [&LOCK_WAIT_MS, &SEARCH_BYTES, &SEARCH_MS].map(|bound| bound.load(Ordering::Relaxed));
    let mut options = options.lock_patience(Duration::from_millis(wait));
    if bytes > 0 {
        options = options.search(Bytes::new(bytes));
    }
    if time > 0 {
        options = options.search_time(Duration::from_millis(time));
    }
    options
}

fn locked(contigs: &Contigs) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
    contigs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bad(name: &'static str, value: i64) -> Failure {
    Failure::BadArgument { name, value: value as u64 }
}

/// Looks at a descriptor that is to stand for memory of no file.
fn check_descriptor(fd: c_int, anonymous: bool) -> Result<(), Failure> {
    let refused = |errno, why| Failure::BadDescriptor { fd, errno, why };
    match (fd, anonymous) {
        (-1, true) => return Ok(()),
        (-1, false) => return Err(refused(errno::EBADF, "-1 goes with MAP_ANONYMOUS only")),
        (..-1, _) => return Err(refused(errno::EBADF, "not open")),
        _ => {}
    }
    // SAFETY: not -1, and used for one copy, which fails where nothing is open.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    let copy = copy.map_err(|error| match error.raw_os_error() {
        Some(errno::EMFILE) => refused(errno::EMFILE, "no descriptor is free to look at it"),
        _ => refused(errno::EBADF, "not open"),
    })?;
    let file = std::fs::File::from(copy);
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
    let mut options = within_bounds(Contig::options().require_run(whole));
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
        return Err(Failure::NotHeld(why.to_owned()));
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

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_mmap_contig(
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
pub extern "C" fn glebe_mmap_contig_wait(milliseconds: u64) -> c_int {
    LOCK_WAIT_MS.store(milliseconds, Ordering::Relaxed);
    0
}

#[no_mangle]
pub extern "C" fn glebe_mmap_contig_search(bytes: u64, milliseconds: u64) -> c_int {
    SEARCH_BYTES.store(bytes, Ordering::Relaxed);
    SEARCH_MS.store(milliseconds, Ordering::Relaxed);
    0
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_munmap_contig(addr: *mut c_void, len: usize) -> c_int {
    call(|| {
        let unknown = || Failure::Unmapped(addr.addr());
        let process = Process::own()?.ok_or_else(unknown)?;
        let mut contigs = locked(&process.contigs);
        let contig = &contigs.get(&addr.addr()).ok_or_else(unknown)?.contig;
        let (given, mapped, spare) = (len as u64, contig.len().get(), contig.spare().get());
        let page = page_size();
        let rounded = Bytes::new(given).pages_up(page).checked_bytes(page).map(Bytes::get);
        if rounded != Some(mapped) && rounded != Some(mapped - spare) {
            return Err(Failure::OtherLength { given, mapped });
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
    let unknown = || Failure::Unmapped(addr);
    let process = Process::own()?.ok_or_else(unknown)?;
    let contigs = locked(&process.contigs);
    let (start, Mapped { contig, .. }) = contigs.range(..=addr).next_back().ok_or_else(unknown)?;
    let offset = Bytes::new((addr - start) as u64);
    if offset >= contig.len() {
        return Err(unknown());
    }
    look(contig, offset)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_contig_query(
    addr: *const c_void,
    contig: *mut glebe_contig,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(contig)? };
        let unknown = || Failure::Unmapped(addr.addr());
        let place = |contig: &Contig, offset| place_of(contig, offset).ok_or_else(unknown);
        Ok(out.set(&look(addr.addr(), place)?))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_contig_verify(
    addr: *const c_void,
    drifts: *mut glebe_drift,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Array::new(drifts, capacity, count, "drifts")? };
        Ok(out.set(look(addr.addr(), |contig, _| verify(contig))?.into_iter()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_contig_certificate(
    addr: *const c_void,
    frames: u64,
    text: *mut c_char,
    text_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(text, text_len_bytes, needed_bytes)? };
        text.set(look(addr.addr(), |contig, _| certificate(contig, frames))?)
    })
}
