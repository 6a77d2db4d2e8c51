//! [`classify`]: whether memory can be volatile, and if not, what it is.
//!
//! Volatile memory is private, anonymous, in base or transparent huge pages, writable, and free to
//! go: `MADV_FREE` refuses the rest with one EINVAL for all of it. Which of several reasons is
//! told: the first in the order of [`Refusal`], of the lowest mapping that has one.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{among, device_of, Vma};
use crate::error::OsError;
use crate::sync::First;
use crate::sys::memory_file::{is_tmpfs, MemoryFile};
use crate::sys::{file, own, page_size};
use crate::units::Bytes;

/// Why memory cannot be volatile. Addresses are the first to which it applies.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing is mapped there.
    #[error("nothing is mapped at {at:#x}")]
    Unmapped {
        /// First address without a mapping.
        at: usize,
    },
    /// Pages of the hugetlb pool, which the kernel does not purge.
    #[error("hugetlb pages of {page} at {at:#x}: the kernel does not purge these")]
    Hugetlb {
        /// First address.
        at: usize,
        /// Size of the pages.
        page: Bytes,
    },
    /// A device, a mapping of page frames, the kernel's own, or one that always loses its pages.
    #[error("special mapping at {at:#x} (VmFlags {flag}, {name:?})")]
    Special {
        /// First address.
        at: usize,
        /// The letter pair of `VmFlags` that says so.
        flag: &'static str,
        /// The mapping's name, often empty.
        name: String,
    },
    /// Seen by other processes: it belongs to all who map it.
    #[error("shared memory at {at:#x} ({name:?})")]
    Shared {
        /// First address.
        at: usize,
        /// The file's path.
        name: String,
    },
    /// A private mapping of a file.
    #[error("private mapping of a file at {at:#x} (inode {inode}, {name:?})")]
    FilePrivate {
        /// First address.
        at: usize,
        /// Of the file.
        inode: u64,
        /// The file's path.
        name: String,
    },
    /// Locked in memory by mlock(2) or MAP_LOCKED.
    #[error("memory at {at:#x} is locked (mlock): it may not go")]
    Locked {
        /// First address.
        at: usize,
    },
    /// Not readable and writable.
    #[error("memory at {at:#x} is {permissions}: it must be readable and writable")]
    ReadOnly {
        /// First address.
        at: usize,
        /// As `/proc/self/maps` shows them.
        permissions: String,
    },
    /// This library's own: a reserve, a table, a word that it keeps.
    #[error("the memory at {at:#x} is glebe's own")]
    Own {
        /// First address.
        at: usize,
    },
    /// Private, where only what processes share can be.
    #[error("private memory at {at:#x} ({name:?}): no other process shares it")]
    Private {
        /// First address.
        at: usize,
        /// The mapping's name, often empty.
        name: String,
    },
    /// A file that is not in memory.
    #[error("a file that is not in memory at {at:#x} ({name:?})")]
    OnDisk {
        /// First address.
        at: usize,
        /// The file's path.
        name: String,
    },
    /// Registered with a userfaultfd that is not this library's to use.
    #[error("a userfaultfd watches the memory at {at:#x} (VmFlags {flag})")]
    Watched {
        /// First address.
        at: usize,
        /// The letter pair of `VmFlags` that says so.
        flag: &'static str,
    },
    /// `/proc/self/smaps` could not be read.
    #[error(transparent)]
    Unknown(OsError),
}

impl From<OsError> for Refusal {
    fn from(error: OsError) -> Self {
        Refusal::Unknown(error)
    }
}

/// Device memory, page frames without or with pages, droppable memory, shadow stacks.
const SPECIAL: [&str; 5] = ["io", "pf", "mm", "dp", "ss"];
/// Missing pages, write protection, minor faults.
const WATCHED: [&str; 3] = ["um", "uw", "ui"];

/// Whether all of a range of the calling process can be volatile.
///
/// The answer is of this moment: whoever maps something else there later makes it untrue, and the
/// calls that mark the memory find out.
///
/// # Errors
/// What the first memory is that cannot be.
pub fn classify(range: &Range<usize>) -> Result<(), Refusal> {
    check_all(range, &WATCHED)
}

/// As [`classify`], of memory that a userfaultfd of the caller's may watch.
///
/// # Errors
/// As there, less [`Refusal::Watched`].
pub fn classify_watched(range: &Range<usize>) -> Result<(), Refusal> {
    check_all(range, &[])
}

/// Whether all of a range of the calling process is shared memory that has no other place than
/// memory: of the kernel's own file system for that, whose device is `in_memory`, or on tmpfs.
///
/// # Errors
/// What the first memory is that is not.
pub fn classify_shared(range: &Range<usize>, in_memory: u64) -> Result<(), Refusal> {
    let refuse = |vma: &Vma, at: usize| refuse_shared(vma, at, in_memory);
    check_by(&among(range)?, range, &refuse)
}

/// Shared memory that lies in memory alone, and where it is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedAt {
    /// The addresses of the mapping.
    pub range: Range<usize>,
    /// What the memory is of.
    pub device: u64,
    /// As above.
    pub inode: u64,
    /// Where in the file address zero would be.
    pub base: u64,
}

impl SharedAt {
    /// Whether an address of both, where there is one, is the same memory.
    #[must_use]
    pub fn is_same_memory(&self, other: &Self) -> bool {
        (self.device, self.inode, self.base) == (other.device, other.inode, other.base)
    }
}

/// What every memfd of this library is called.
const OWN_NAME: &str = "/memfd:glebe ";

/// The mapping that holds an address, of shared memory as [`classify_shared`] has it.
///
/// # Errors
/// As there; [`Refusal::Own`] where some of it is this library's.
pub fn shared_at(at: usize) -> Result<SharedAt, Refusal> {
    static IN_MEMORY: First<Option<u64>> = First::new();
    let page = page_size().bytes();
    // Where none can be made, that of no file.
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

/// [`classify`] of mappings that were read.
pub(super) fn check(
    vmas: &[Vma],
    range: &Range<usize>,
    watched: &[&'static str],
) -> Result<(), Refusal> {
    check_by(vmas, range, &|vma, at| refuse(vma, at, watched))
}

/// Every mapping of a range, which has no hole.
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
    // The kernel's own: [vdso], [vvar], [vsyscall] have no inode and cannot grow or move.
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

/// Whether the file is on a tmpfs that this process sees mounted; it may have no name any more. A
/// file whose mount is not seen may be found by its path.
fn is_on_tmpfs(vma: &Vma) -> bool {
    let mounts = file::read_text(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    mounts.lines().any(|mount| is_tmpfs_of(mount, vma.device)) || is_named_on_tmpfs(vma)
}

/// `24 1 0:22 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw`: the third field is the device, in
/// decimal digits. Source: proc_pid_mountinfo(5).
pub(super) fn is_tmpfs_of(mount: &str, device: u64) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    let (fields, kind) = mount.split_once(" - ").unwrap_or_default();
    let numbers = fields.split(' ').nth(2).and_then(|field| field.split_once(':'));
    let numbers = numbers.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    numbers.is_some_and(|(major, minor)| device_of(major, minor) == device)
        && kind.starts_with("tmpfs ")
}

/// Whether the file at the mapping's path is that one, and on tmpfs.
fn is_named_on_tmpfs(vma: &Vma) -> bool {
    let path = Path::new(&vma.path);
    let is_it = |meta: Metadata| (meta.dev(), meta.ino()) == (vma.device, vma.inode);
    path.is_absolute() && file::metadata_of(path).is_ok_and(is_it) && is_tmpfs(path)
}
