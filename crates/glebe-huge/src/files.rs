//! Files of huge pages: memfds with `MFD_HUGETLB`, and new files on hugetlbfs.
//!
//! The kernel's file *waits* without memory until the program sets its length, fills it or maps it.
//! Then a lease's file takes its place at each of the process's descriptors. The lease lasts while
//! the process has a descriptor or a mapping of it, and for the process's life once a descriptor
//! was sent over a socket.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use glebe_os::internal::sys::memory::direct::{
    self, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE,
};
use glebe_os::internal::sys::memory::direct_files::{
    self, file_of, huge_page_of, replace, F_SEAL_EXEC, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK,
    MFD_ALLOW_SEALING, MFD_CLOEXEC, MFD_HUGETLB,
};

pub(crate) use glebe_os::internal::sys::memory::direct_files::FileId;

use crate::loan::Loan;
use crate::state::{is_own, locked, State};

#[derive(Default)]
pub(crate) struct Files {
    /// Files without memory, and the size of their pages.
    waiting: BTreeMap<FileId, usize>,
    /// Files whose place a lease took, or that are left to the kernel. Their names lead to the
    /// kernel's file, which stays so: two leases for one name would be two contents.
    replaced: BTreeSet<FileId>,
    leased: BTreeMap<FileId, Leased>,
}

impl Files {
    /// Notes that a child has the files too, and may write to them. Returns their loans.
    pub(crate) fn forked(&mut self) -> impl Iterator<Item = &mut Loan> {
        self.leased.values_mut().map(|leased| {
            leased.is_fresh = false;
            &mut leased.loan
        })
    }
}

pub(crate) struct Leased {
    loan: Loan,
    pub(crate) page: usize,
    /// Holdings that map the file.
    maps: usize,
    /// Nothing wrote to the file.
    pub(crate) is_fresh: bool,
    is_sent: bool,
    /// The program's seals. The daemon's file has others.
    seals: i32,
}

/// What the library knows of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Waiting { page: usize },
    Leased { page: usize, is_mapped: bool, is_fresh: bool },
}

/// Seals that this library can keep. It cannot keep other processes from writing.
pub(crate) const KEPT_SEALS: i32 = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;

/// Some file waits or is leased, or was.
static IS_ANY: AtomicBool = AtomicBool::new(false);
/// Some file is leased, or was.
static IS_LEASED: AtomicBool = AtomicBool::new(false);

/// Returns false if no descriptor can be of interest.
pub(crate) fn is_any() -> bool {
    IS_ANY.load(Relaxed) && !is_own()
}

pub(crate) fn is_any_leased() -> bool {
    IS_LEASED.load(Relaxed) && !is_own()
}

/// Has an empty file on hugetlbfs wait.
pub(crate) fn opened(fd: i32) {
    let Some(page) = huge_page_of(fd) else { return };
    if let Some((file, 0)) = file_of(fd) {
        let mut locked = locked();
        let files = &mut locked.get().files;
        if !files.replaced.contains(&file) {
            IS_ANY.store(true, Relaxed);
            files.waiting.insert(file, page);
        }
    }
}

/// Does what closes descriptors, and ends leases that were open only there.
pub(crate) fn closing<T>(fd: i32, close: impl FnOnce() -> T) -> T {
    if !is_any_leased() {
        return close();
    }
    let is_leased = |(file, _): &(FileId, u64)| locked().get().files.leased.contains_key(file);
    let file = file_of(fd).filter(is_leased);
    let done = close();
    if let Some((file, _)) = file {
        locked().get().end_unused(file);
    }
    done
}

/// As [`closing`], for many descriptors.
pub(crate) fn closing_many<T>(close: impl FnOnce() -> T) -> T {
    let done = close();
    if is_any_leased() {
        let mut locked = locked();
        let state = locked.get();
        let all: Vec<_> = state.files.leased.keys().copied().collect();
        all.into_iter().for_each(|file| state.end_unused(file));
    }
    done
}

/// Another process may get the descriptor.
pub(crate) fn sent(fd: i32) {
    let Some((file, len)) = file_of(fd) else { return };
    let mut locked = locked();
    let state = locked.get();
    if let Some(leased) = state.files.leased.get_mut(&file) {
        (leased.is_sent, leased.is_fresh) = (true, false);
    } else if len > 0 {
        state.leave_file(fd);
    }
}

impl State {
    /// Returns what a descriptor is open on, with the length of the file.
    pub(crate) fn known(&self, fd: i32) -> Option<(FileId, usize, Known)> {
        let (file, len) = file_of(fd)?;
        let waiting = self.files.waiting.get(&file).map(|page| Known::Waiting { page: *page });
        let known = waiting.or_else(|| {
            let Leased { page, maps, is_fresh, .. } = self.files.leased.get(&file)?;
            Some(Known::Leased { page: *page, is_mapped: *maps > 0, is_fresh: *is_fresh })
        });
        Some((file, len as usize, known?))
    }

    /// Returns the seals of a leased file.
    pub(crate) fn seals(&mut self, fd: i32) -> Option<&mut i32> {
        let (file, _) = file_of(fd)?;
        Some(&mut self.files.leased.get_mut(&file)?.seals)
    }

    /// Puts a lease of a length in the place of a file that nobody has mapped, with its contents.
    /// Returns the lease's file, or why it was refused.
    pub(crate) fn lease_file(
        &mut self,
        file: FileId,
        fd: i32,
        len: usize,
    ) -> Result<FileId, String> {
        let (_, old_len, known) = self.known(fd).ok_or("the file is closed")?;
        let (Known::Waiting { page } | Known::Leased { page, .. }) = known;
        let seals = self.seals(fd).map_or_else(|| direct_files::seals(fd), |seals| *seals);
        if seals & !(KEPT_SEALS | F_SEAL_EXEC) != 0 {
            return Err("the file is sealed against writes".to_owned());
        }
        let (loan, lent) = self.lend(len, page)?;
        let Some((id, _)) = file_of(lent.as_raw_fd()) else {
            self.end_loan(loan);
            return Err("the lease is no regular file".to_owned());
        };
        let is_fresh = !matches!(known, Known::Leased { is_fresh: false, .. });
        if !is_fresh && !copied(fd, lent.as_raw_fd(), old_len.min(len)) {
            self.end_loan(loan);
            return Err("the contents cannot be copied".to_owned());
        }
        replace_all(file, &lent);
        drop(lent);
        let leased = Leased { loan, page, maps: 0, is_fresh, is_sent: false, seals };
        self.files.leased.insert(id, leased);
        IS_LEASED.store(true, Relaxed);
        if self.files.waiting.remove(&file).is_some() {
            self.files.replaced.insert(file);
        }
        self.end_unused(file);
        Ok(id)
    }

    /// Has a file that nobody has mapped wait again, without contents. Returns false if the kernel
    /// gives no new file.
    pub(crate) fn empty_file(&mut self, file: FileId, page: usize, len: usize) -> bool {
        let huge = page.trailing_zeros() << direct::MAP_HUGE_SHIFT;
        let name = c"glebe".as_ptr().expose_provenance();
        let flags = MFD_HUGETLB | MFD_ALLOW_SEALING | MFD_CLOEXEC | huge;
        // SAFETY: the name is a constant.
        let made = unsafe { direct_files::memfd_create(name, flags) };
        let Ok(fd) = made else { return false };
        // SAFETY: nobody else has the new descriptor.
        let empty = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
        let seals = self.files.leased.get(&file).map_or(0, |leased| leased.seals & KEPT_SEALS);
        let is_alike = direct_files::ftruncate(empty.as_raw_fd(), len as i64)
            .and_then(|_| direct_files::add_seals(empty.as_raw_fd(), seals))
            .is_ok();
        let Some((id, _)) = file_of(empty.as_raw_fd()).filter(|_| is_alike) else { return false };
        replace_all(file, &empty);
        self.files.waiting.insert(id, page);
        self.end_unused(file);
        true
    }

    /// Counts a mapping. Even a read-only one may become writable, so the file is no longer fresh.
    pub(crate) fn mapped_file(&mut self, file: FileId) {
        if let Some(leased) = self.files.leased.get_mut(&file) {
            leased.maps += 1;
            leased.is_fresh = false;
        }
    }

    /// Leaves a file to the kernel from now on: it has pages of the pool, or others have it too and
    /// would get other memory.
    pub(crate) fn leave_file(&mut self, fd: i32) {
        if let Some((file, _)) = file_of(fd) {
            if self.files.waiting.remove(&file).is_some() {
                self.files.replaced.insert(file);
            }
        }
    }

    /// Leaves files to the kernel that have a length, but no lease, before a child gets them too.
    pub(crate) fn leave_files(&mut self) {
        let waiting: Vec<FileId> = self.files.waiting.keys().copied().collect();
        for file in waiting {
            let fd = descriptors(file).next();
            if let Some(fd) = fd.filter(|fd| file_of(*fd).is_some_and(|(_, len)| len > 0)) {
                self.leave_file(fd);
            }
        }
    }

    pub(crate) fn unmapped_file(&mut self, file: FileId) {
        if let Some(leased) = self.files.leased.get_mut(&file) {
            leased.maps -= 1;
        }
        self.end_unused(file);
    }

    /// Ends the lease of a file that the process has neither open nor mapped.
    fn end_unused(&mut self, file: FileId) {
        if !self.is_at_home() {
            return;
        }
        let is_used = |leased: &Leased| leased.maps > 0 || leased.is_sent;
        if self.files.leased.get(&file).is_none_or(is_used) || descriptors(file).next().is_some() {
            return;
        }
        if let Some(leased) = self.files.leased.remove(&file) {
            self.leave(leased.loan);
        }
    }
}

/// Returns the process's descriptors of a file.
fn descriptors(file: FileId) -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    let size = size.and_then(|size| size.trim().parse().ok()).unwrap_or(1024);
    (0..size).filter(move |fd| file_of(*fd).is_some_and(|(id, _)| id == file))
}

fn replace_all(file: FileId, by: &File) {
    for fd in descriptors(file) {
        // SAFETY: the descriptor is the program's, which asked for huge pages there.
        let _ = unsafe { replace(by.as_raw_fd(), fd) };
    }
}

/// Copies the beginning of a file to another one.
fn copied(from: i32, to: i32, len: usize) -> bool {
    let view = |fd, prot| {
        // SAFETY: the kernel chooses the address.
        unsafe { direct::mmap(0, len, prot, MAP_SHARED | MAP_NORESERVE, fd, 0) }
    };
    let Ok(old) = view(from, PROT_READ) else { return false };
    let new = view(to, PROT_READ | PROT_WRITE);
    // SAFETY: both views are this function's own.
    unsafe {
        if let Ok(new) = new {
            direct::copy(old, new, len);
            let _ = direct::munmap(new, len);
        }
        let _ = direct::munmap(old, len);
    }
    new.is_ok()
}
