//! [`classify`] checks if private memory can be volatile, and [`classify_shared`] checks shared
//! memory.
//!
//! Volatile memory, which the kernel may purge, is readable, writable, not locked and not hugetlb.
//! Private volatile memory is also anonymous, because `MADV_FREE` answers EINVAL for files. The
//! lowest unfit mapping is reported.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{among, device_of, Vma};
use crate::error::OsError;
use crate::internal::sync::First;
use crate::internal::sys::files::file;
use crate::internal::sys::memory::memory_file::{is_tmpfs, MemoryFile};
use crate::internal::sys::memory::own;
use crate::internal::sys::page_size;
use crate::units::Bytes;

/// Reason why memory cannot be volatile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("nothing is mapped at {at:#x}")]
    Unmapped {
        /// First address without a mapping.
        at: usize,
    },
    #[error("hugetlb pages of {page} at {at:#x}: the kernel does not purge these")]
    Hugetlb {
        /// First unfit address.
        at: usize,
        page: Bytes,
    },
    #[error("special mapping at {at:#x} (VmFlags {flag}, {name:?})")]
    Special {
        /// First unfit address.
        at: usize,
        flag: &'static str,
        name: String,
    },
    #[error("shared memory at {at:#x} ({name:?})")]
    Shared {
        /// First unfit address.
        at: usize,
        name: String,
    },
    #[error("private mapping of a file at {at:#x} (inode {inode}, {name:?})")]
    FilePrivate {
        /// First unfit address.
        at: usize,
        inode: u64,
        name: String,
    },
    #[error("memory at {at:#x} is locked (mlock): it may not go")]
    Locked {
        /// First unfit address.
        at: usize,
    },
    #[error("memory at {at:#x} is {permissions}: it must be readable and writable")]
    ReadOnly {
        /// First unfit address.
        at: usize,
        permissions: String,
    },
    #[error("the memory at {at:#x} is glebe's own")]
    Own {
        /// First unfit address.
        at: usize,
    },
    #[error("private memory at {at:#x} ({name:?}): no other process shares it")]
    Private {
        /// First unfit address.
        at: usize,
        name: String,
    },
    #[error("a file that is not in memory at {at:#x} ({name:?})")]
    OnDisk {
        /// First unfit address.
        at: usize,
        name: String,
    },
    #[error("a userfaultfd watches the memory at {at:#x} (VmFlags {flag})")]
    Watched {
        /// First unfit address.
        at: usize,
        flag: &'static str,
    },
    #[error(transparent)]
    Unknown(OsError),
}

impl From<OsError> for Refusal {
    fn from(error: OsError) -> Self {
        Refusal::Unknown(error)
    }
}

/// `VmFlags` of device memory, raw page frames, frames mixed with pages, droppable memory, shadow
/// stacks.
const SPECIAL: [&str; 5] = ["io", "pf", "mm", "dp", "ss"];
/// `VmFlags` of ranges that a userfaultfd watches for missing pages, write protection, minor
/// faults.
const WATCHED: [&str; 3] = ["um", "uw", "ui"];

pub fn classify(range: &Range<usize>) -> Result<(), Refusal> {
    check_all(range, &WATCHED)
}

/// Allows a userfaultfd, unlike [`classify`].
pub fn classify_watched(range: &Range<usize>) -> Result<(), Refusal> {
    check_all(range, &[])
}

/// Checks shared memory, which must be on the device `in_memory` or on tmpfs.
pub fn classify_shared(range: &Range<usize>, in_memory: u64) -> Result<(), Refusal> {
    let refuse = |vma: &Vma, at: usize| refuse_shared(vma, at, in_memory);
    check_by(&among(range)?, range, &refuse)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedAt {
    pub range: Range<usize>,
    pub device: u64,
    pub inode: u64,
    /// Offset in the file that address zero would have, modulo 2^64.
    pub base: u64,
}

impl SharedAt {
    #[must_use]
    pub fn is_same_memory(&self, other: &Self) -> bool {
        (self.device, self.inode, self.base) == (other.device, other.inode, other.base)
    }
}

const OWN_NAME: &str = "/memfd:glebe ";

/// Returns the mapping at address `at`, unless [`classify_shared`] refuses it or this library owns
/// it.
pub fn shared_at(at: usize) -> Result<SharedAt, Refusal> {
    static IN_MEMORY: First<Option<u64>> = First::new();
    let page = page_size().bytes();
    // If no memfd can be made, `u64::MAX` matches no file.
    let of_memfd = || MemoryFile::new(page).and_then(|file| file.device()).ok();
    let in_memory = IN_MEMORY.get_or_compute(of_memfd).unwrap_or(u64::MAX);
    let vmas = among(&(at..at.saturating_add(1)))?;
    let vma = vmas.first().ok_or(Refusal::Unmapped { at })?;
    refuse_shared(vma, at, in_memory)?;
    let range = vma.start..vma.end;
    if vma.path.starts_with(OWN_NAME) || own::first_in(&range).is_some() {
        return Err(Refusal::Own { at });
    }
    let base = vma.offset.wrapping_sub(vma.start as u64);
    Ok(SharedAt { range, device: vma.device, inode: vma.inode, base })
}

fn check_all(range: &Range<usize>, watched: &[&'static str]) -> Result<(), Refusal> {
    let own = own::first_in(range);
    let others = range.start..own.unwrap_or(range.end);
    if !others.is_empty() {
        check(&among(&others)?, &others, watched)?;
    }
    own.map_or(Ok(()), |at| Err(Refusal::Own { at }))
}

pub(super) fn check(
    vmas: &[Vma],
    range: &Range<usize>,
    watched: &[&'static str],
) -> Result<(), Refusal> {
    check_by(vmas, range, &|vma, at| refuse(vma, at, watched))
}

fn check_by(
    vmas: &[Vma],
    range: &Range<usize>,
    refuse: &dyn Fn(&Vma, usize) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut next = range.start;
    for vma in vmas {
        if vma.start > next {
            break;
        }
        refuse(vma, vma.start.max(range.start))?;
        next = next.max(vma.end);
    }
    if next < range.end {
        return Err(Refusal::Unmapped { at: next });
    }
    Ok(())
}

fn refuse(vma: &Vma, at: usize, watched: &[&'static str]) -> Result<(), Refusal> {
    let name = || vma.path.clone();
    let flag_of = |flags: &[&'static str]| flags.iter().copied().find(|flag| vma.has(flag));
    if vma.has("ht") {
        return Err(Refusal::Hugetlb { at, page: vma.kernel_page });
    }
    if let Some(flag) = flag_of(&SPECIAL) {
        return Err(Refusal::Special { at, flag, name: name() });
    }
    // [vdso], [vvar] and [vsyscall] have no inode and cannot grow or move.
    if vma.has("de") && vma.inode == 0 {
        return Err(Refusal::Special { at, flag: "de", name: name() });
    }
    if !vma.is_private() || vma.has("sh") {
        return Err(Refusal::Shared { at, name: name() });
    }
    if vma.inode != 0 {
        return Err(Refusal::FilePrivate { at, inode: vma.inode, name: name() });
    }
    if vma.has("lo") {
        return Err(Refusal::Locked { at });
    }
    if let Some(flag) = flag_of(watched) {
        return Err(Refusal::Watched { at, flag });
    }
    if !vma.permissions.starts_with(b"rw") {
        let permissions = String::from_utf8_lossy(&vma.permissions).into_owned();
        return Err(Refusal::ReadOnly { at, permissions });
    }
    Ok(())
}

fn refuse_shared(vma: &Vma, at: usize, in_memory: u64) -> Result<(), Refusal> {
    let name = || vma.path.clone();
    if vma.has("ht") {
        return Err(Refusal::Hugetlb { at, page: vma.kernel_page });
    }
    if vma.is_private() {
        return Err(Refusal::Private { at, name: name() });
    }
    if let Some(flag) = SPECIAL.iter().copied().find(|flag| vma.has(flag)) {
        return Err(Refusal::Special { at, flag, name: name() });
    }
    if vma.device != in_memory && !is_on_tmpfs(vma) {
        return Err(Refusal::OnDisk { at, name: name() });
    }
    if vma.has("lo") {
        return Err(Refusal::Locked { at });
    }
    if !vma.permissions.starts_with(b"rw") {
        let permissions = String::from_utf8_lossy(&vma.permissions).into_owned();
        return Err(Refusal::ReadOnly { at, permissions });
    }
    Ok(())
}

/// Returns true if the device is a mounted tmpfs or the path is on tmpfs. Unnamed files have no
/// path.
fn is_on_tmpfs(vma: &Vma) -> bool {
    let mounts = file::read_text(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    mounts.lines().any(|mount| is_tmpfs_of(mount, vma.device)) || is_named_on_tmpfs(vma)
}

/// The third field of a line of mountinfo is the device, in decimal:
/// `24 1 0:22 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw`. Source: proc_pid_mountinfo(5).
pub(super) fn is_tmpfs_of(mount: &str, device: u64) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    let (fields, kind) = mount.split_once(" - ").unwrap_or_default();
    let numbers = fields.split(' ').nth(2).and_then(|field| field.split_once(':'));
    let numbers = numbers.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    numbers.is_some_and(|(major, minor)| device_of(major, minor) == device)
        && kind.starts_with("tmpfs ")
}

fn is_named_on_tmpfs(vma: &Vma) -> bool {
    let path = Path::new(&vma.path);
    let is_it = |meta: Metadata| (meta.dev(), meta.ino()) == (vma.device, vma.inode);
    path.is_absolute() && file::metadata_of(path).is_ok_and(is_it) && is_tmpfs(path)
}
