//! [`SharedOptions`]: creates and opens shared files.
//!
//! A file gets its name last. So nobody opens an unfinished file, and a failure leaves none.
//!
//! # Safety
//! The caller of [`SharedOptions::over`] keeps the memory mapped.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::guard::Guard;
use super::holder::{join, Membership};
use super::layout::{Layout, HOLDERS_MAX, WORD};
use super::ledger::Ledger;
use super::region::Shared;
use super::store::Store;
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::files::file;
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::memory::vma::classify_shared;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

const ALIGN_MAX: Bytes = Bytes::mib(2);
const HOLDERS: u32 = 64;

/// Options of a [`Shared`]; from [`Shared::options`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until the file is made or opened"]
pub struct SharedOptions {
    granule: Option<Bytes>,
    holders: u32,
    pin_quota: Option<Bytes>,
    sigbus: bool,
}

impl SharedOptions {
    pub(super) fn new() -> Self {
        Self { granule: None, holders: HOLDERS, pin_quota: None, sigbus: false }
    }

    /// Sets the granule, the unit of marks, pins and losses: a power of two, at least a base page
    /// (the default).
    pub fn granule(self, granule: Bytes) -> Self {
        Self { granule: Some(granule), ..self }
    }

    /// Sets how many [`Shared`] of all processes can use the file at once, at most 128. Default:
    /// 64.
    pub fn holders(self, holders: u32) -> Self {
        Self { holders, ..self }
    }

    /// Sets how many bytes each [`Shared`] of a process may pin at once. Default: no limit.
    pub fn pin_quota(self, quota: Bytes) -> Self {
        Self { pin_quota: Some(quota), ..self }
    }

    /// Makes a touch of a lost, marked page without a pin raise SIGBUS in this process. Default:
    /// the touch finds zeros. System calls on missing pages then fail with EFAULT. Needs
    /// userfaultfd, and glebe's SIGBUS handler before all others. Files that other processes may
    /// truncate need the handler too.
    pub fn sigbus(self, sigbus: bool) -> Self {
        Self { sigbus, ..self }
    }

    /// Creates a file without a name, of `len` zero bytes, rounded up to granules. Other processes
    /// open it by its [descriptor](Shared::fd).
    ///
    /// # Errors
    /// [`Error::BadOption`], [`Error::Empty`], [`Error::Beyond`], [`Error::HandlerCovered`],
    /// [`Error::Os`].
    pub fn create(self, len: Bytes) -> Result<Shared, Error> {
        let layout = self.layout(len)?;
        let file = MemoryFile::new(Bytes::new(layout.total))?;
        write_header(&file, &layout)?;
        self.use_file(file, layout)
    }

    /// Creates a file at a new `path` on tmpfs, for this user only.
    ///
    /// # Errors
    /// As [`SharedOptions::create`]; [`Error::UnsuitableFile`] on another file system.
    pub fn create_at(self, path: &Path, len: Bytes) -> Result<Shared, Error> {
        let layout = self.layout(len)?;
        let made = MemoryFile::new_for(path, Bytes::new(layout.total))?;
        let file = made.map_err(Error::UnsuitableFile)?;
        write_header(&file, &layout)?;
        let shared = self.use_file(file, layout)?;
        shared.ledger().file().link_at(path)?;
        Ok(shared)
    }

    /// Opens the file at `path`; the only symbolic link allowed is `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// [`Error::UnsuitableFile`], [`Error::BadFile`], [`Error::Truncated`],
    /// [`Error::HandlerCovered`], [`Error::NoHolderLeft`], [`Error::Busy`], [`Error::Os`].
    pub fn open(self, path: &Path) -> Result<Shared, Error> {
        let file = MemoryFile::open(path)?.map_err(Error::UnsuitableFile)?;
        let layout = read_header(&file)?;
        self.use_file(file, layout)
    }

    /// Opens the file of a descriptor.
    ///
    /// # Errors
    /// As [`SharedOptions::open`].
    pub fn adopt(self, descriptor: OwnedFd) -> Result<Shared, Error> {
        let file = MemoryFile::adopt(descriptor.into())?.map_err(Error::UnsuitableFile)?;
        let layout = read_header(&file)?;
        self.use_file(file, layout)
    }

    /// Shares the caller's memory: `len` bytes at `addr` of a tmpfs file, a memfd or
    /// `MAP_SHARED | MAP_ANONYMOUS`. The contents stay. Only this process and children forked later
    /// can use it.
    ///
    /// # Errors
    /// As [`SharedOptions::create`]; [`Error::Unaligned`] if `addr` is no multiple of the
    /// page, or `len` of the granule; [`Error::Unsuitable`] for other memory; [`Error::BadOption`]
    /// with [`SharedOptions::sigbus`].
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable while this process or a child uses it, and
    /// nobody cuts its file. No reference to a marked granule without pins exists: its contents may
    /// vanish.
    pub unsafe fn over(self, addr: *mut u8, len: Bytes) -> Result<Shared, Error> {
        let (addr, page) = (addr.expose_provenance(), page_size().bytes());
        let layout = self.layout(len)?.without_data();
        for (offset, granule) in [(Bytes::new(addr as u64), page), (len, layout.granule())] {
            if offset.get() % granule.get() != 0 {
                return Err(Error::Unaligned { offset, granule });
            }
        }
        if self.sigbus {
            let what = "touches of the caller's memory cannot be told: sigbus";
            return Err(Error::BadOption { what, value: 1, limit: 0 });
        }
        let end = addr.checked_add(len.as_usize());
        let (end_at, limit) = (Bytes::new(u64::MAX), Bytes::new(usize::MAX as u64));
        let end = end.ok_or(Error::Beyond { end: end_at, limit })?;
        let file = MemoryFile::new(Bytes::new(layout.total))?;
        classify_shared(&(addr..end), file.device()?)?;
        write_header(&file, &layout)?;
        let ledger = Arc::new(Ledger::with(file, layout, Store::Memory(addr))?);
        // SAFETY: the caller keeps the memory mapped.
        let data = unsafe { Mapping::borrowed(addr, len) };
        let guard = Guard::new(&ledger, None, false)?;
        let membership = Membership::new(join(&ledger)?);
        Ok(Shared::new(membership, guard, data, ledger))
    }

    fn use_file(self, file: MemoryFile, layout: Layout) -> Result<Shared, Error> {
        let ledger = Arc::new(Ledger::new(file, layout)?);
        let align = PageSize::new(layout.granule.min(ALIGN_MAX.get())).unwrap_or(page_size());
        let data = ledger.map_data(align)?;
        let guard = Guard::new(&ledger, Some(&data), self.sigbus)?;
        let membership = Membership::new(guard.armed(join(&ledger)?)?);
        ledger.whole()?;
        Ok(Shared::new(membership, guard, data, ledger))
    }

    fn layout(&self, len: Bytes) -> Result<Layout, Error> {
        let granule = self.granule.unwrap_or(page_size().bytes());
        Layout::new(len, granule, self.holders, self.pin_quota)
    }
}

const _: () = assert!(HOLDERS <= HOLDERS_MAX);

fn write_header(file: &MemoryFile, layout: &Layout) -> Result<(), Error> {
    let header = layout.header();
    let (magic, rest) = header.split_at(WORD as usize);
    let refused = |source| OsError::new("pwrite", "the header", source);
    file::write_at(file.as_file(), &[1], layout.fence()).map_err(refused)?;
    file::write_at(file.as_file(), rest, WORD).map_err(refused)?;
    file::write_at(file.as_file(), magic, 0).map_err(refused)?;
    Ok(())
}

pub(super) fn read_header(file: &MemoryFile) -> Result<Layout, Error> {
    let mut header = [0; Layout::HEADER];
    let read = file::read_some_at(file.as_file(), &mut header, 0);
    let read = read.map_err(|source| OsError::new("pread", "the header", source))?;
    if read < header.len() {
        let (value, expected) = (read as u64, header.len() as u64);
        return Err(Error::BadFile { what: "its length", value, expected });
    }
    Layout::read(&header, file.len()?)
}
