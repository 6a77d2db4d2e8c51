//! [`SharedOptions`]: what a shared file is to be like, and how one comes to be or is opened.
//!
//! The creator writes the header, the magic last, so that nobody takes a file that is half made.
//! Whoever opens one takes all that can be told from the header, and none of these options but
//! [`SharedOptions::sigbus`].
//!
//! # Safety
//! Memory of the caller's is taken at the caller's word.
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
use crate::error::OsError;
use crate::mapping::Mapping;
use crate::sys::memory_file::MemoryFile;
use crate::sys::vma::classify_shared;
use crate::sys::{file, page_size};
use crate::units::{Bytes, PageSize};
use crate::volatile::Error;

/// Addresses of larger granules are multiples of no more than this.
const ALIGN_MAX: Bytes = Bytes::mib(2);
const HOLDERS: u32 = 64;

/// What a [`Shared`] is to be like; from [`Shared::options`].
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

    /// What is marked, pinned and lost as a whole: a power of two, at least a base page, which it
    /// is where nothing is said.
    pub fn granule(self, granule: Bytes) -> Self {
        Self { granule: Some(granule), ..self }
    }

    /// How many processes can use the file at once, 128 at most; 64 where nothing is said. A
    /// process counts once for each [`Shared`] of the file that it has.
    pub fn holders(self, holders: u32) -> Self {
        Self { holders, ..self }
    }

    /// How much each of these may have pinned at once, in whole granules; all where nothing is
    /// said.
    pub fn pin_quota(self, quota: Bytes) -> Self {
        Self { pin_quota: Some(quota), ..self }
    }

    /// Whether a touch of a lost page, without a pin, is SIGBUS while it is marked; else it finds
    /// zeros. A system call that is given a page without memory then answers EFAULT, marked or not.
    /// Needs userfaultfd. The first such file installs glebe's SIGBUS handler, in front of
    /// those that the program has.
    pub fn sigbus(self, sigbus: bool) -> Self {
        Self { sigbus, ..self }
    }

    /// A new file without a name, of `len` bytes of data, rounded up to whole granules, all zeros.
    /// Others get it by its [descriptor](Shared::fd). Nobody can change its length.
    ///
    /// # Errors
    /// [`Error::BadOption`], [`Error::Empty`], [`Error::Beyond`]; what the kernel refuses.
    pub fn create(self, len: Bytes) -> Result<Shared, Error> {
        let layout = self.layout(len)?;
        let file = MemoryFile::new(Bytes::new(layout.total))?;
        write_header(&file, &layout)?;
        self.use_file(file, layout)
    }

    /// As [`SharedOptions::create`], a file at `path`, which must not be there yet and be on tmpfs;
    /// for this user alone. It stays until it is removed.
    ///
    /// # Errors
    /// As there; [`Error::UnsuitableFile`] on another file system.
    pub fn create_at(self, path: &Path, len: Bytes) -> Result<Shared, Error> {
        let layout = self.layout(len)?;
        let made = MemoryFile::new_at(path, Bytes::new(layout.total))?;
        let file = made.map_err(Error::UnsuitableFile)?;
        write_header(&file, &layout)?;
        self.use_file(file, layout)
    }

    /// Opens the file at `path`, which is no symbolic link, but may be the name of a descriptor,
    /// `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// [`Error::UnsuitableFile`], [`Error::BadFile`], [`Error::Truncated`] for a file that is none
    /// of this kind; [`Error::HandlerCovered`] for one that may be cut; [`Error::NoHolderLeft`];
    /// [`Error::Busy`]; what the kernel refuses, as where there is no `/proc`.
    pub fn open(self, path: &Path) -> Result<Shared, Error> {
        let file = MemoryFile::open(path)?.map_err(Error::UnsuitableFile)?;
        let layout = read_header(&file)?;
        self.use_file(file, layout)
    }

    /// Opens the file of a descriptor, which another process may have sent.
    ///
    /// # Errors
    /// As [`SharedOptions::open`].
    pub fn adopt(self, descriptor: OwnedFd) -> Result<Shared, Error> {
        let file = MemoryFile::adopt(descriptor.into())?.map_err(Error::UnsuitableFile)?;
        let layout = read_header(&file)?;
        self.use_file(file, layout)
    }

    /// Memory of the caller's that processes share: `len` bytes at `addr`, of a file on tmpfs, a
    /// memfd, or `MAP_SHARED | MAP_ANONYMOUS`. Its contents stay. Those who use it are this process
    /// and the children that it forks afterwards: what is marked, pinned and lost stands in a file
    /// of its own, which only they have ([`Shared::fd`] is of no use to others). At the end the
    /// memory is left as it is.
    ///
    /// # Errors
    /// As [`SharedOptions::create`]; [`Error::Unaligned`] for an address that no page or a length
    /// that no granule is a part of; [`Error::Unsuitable`] for other memory; [`Error::BadOption`]
    /// with [`SharedOptions::sigbus`].
    ///
    /// # Safety
    /// The memory stays mapped as long as this lives, and in every child that uses it, and can be
    /// read and written; nobody cuts its file. No reference to a granule exists while it is marked
    /// and not pinned; the contents of such granules may vanish.
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
        // SAFETY: passed on from the caller.
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

/// Says what the file is, the magic last.
fn write_header(file: &MemoryFile, layout: &Layout) -> Result<(), Error> {
    let header = layout.header();
    let (magic, rest) = header.split_at(WORD as usize);
    let refused = |source| OsError::new("pwrite", "the header", source);
    file::write_at(file.as_file(), &[1], layout.fence()).map_err(refused)?;
    file::write_at(file.as_file(), rest, WORD).map_err(refused)?;
    file::write_at(file.as_file(), magic, 0).map_err(refused)?;
    Ok(())
}

/// The layout that the header of a file says.
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
