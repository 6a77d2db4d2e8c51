//! [`Charged`]: the memory cgroups above this process, kept open, so that a look at their limits
//! and usage allocates nothing and opens no file, also where one cannot be read. Where the process
//! may not open so many (`ulimit -n`), a look opens one at a time.
//!
//! What a look finds is of the whole group, groups below it included. In version 2 the limit is
//! the lower of `memory.max` and `memory.high`. Unit of refaults: pages. Cost of a look: three or
//! four reads a level. A group that was removed reads as `ENODEV`.
//! Source: admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::{group_of, read, Mount, UNLIMITED};
use crate::error::OsError;
use crate::sys::file;
use crate::sys::unread::Unread;
use crate::units::Bytes;

/// The longest file that is read, beyond which what is looked for does not stand.
const TEXT_MAX: usize = 8 << 10;

/// A group as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) limit: Bytes,
    /// All that is charged.
    pub(crate) used: Bytes,
    /// Of it the page cache that the kernel drops first, marked memory with it.
    pub(crate) inactive_files: Bytes,
    /// And that which it keeps longer.
    pub(crate) active_files: Bytes,
    /// Of both what is no page of a file: it was marked volatile, whether or not it is in use
    /// again. `None` where the kernel does not say.
    pub(crate) no_files: Option<Bytes>,
    /// Pages of files that were dropped and read again, since the group was made. `None` where the
    /// kernel does not say.
    pub(crate) refaults: Option<u64>,
}

impl Usage {
    fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.inactive_files))
    }
}

/// A group, its files open.
#[derive(Debug)]
pub(crate) struct Group {
    dir: PathBuf,
    is_v2: bool,
    limits: [Option<Source>; 2],
    usage: Source,
    stat: Option<Source>,
}

/// A file of a group: kept open, or opened for each read.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: Option<File>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    groups: Vec<Group>,
}

impl Charged {
    /// Opens the files below `root`, which is `/` but for fixtures. None where there are no lists
    /// of groups and mounts: nothing is known of groups there.
    ///
    /// # Errors
    /// If the lists, or a group's files, are there and cannot be opened.
    pub(crate) fn open(root: &Path) -> Result<Option<Self>, OsError> {
        keep_if_possible(|keeps| Self::open_above(root, keeps))
    }

    fn open_above(root: &Path, keeps: bool) -> Result<Option<Self>, OsError> {
        let text = |path: &str| read(&root.join(path));
        let lists = (text("proc/self/cgroup")?, text("proc/self/mountinfo")?);
        let (Some(listed), Some(mounts)) = lists else { return Ok(None) };
        let mut groups = Vec::new();
        for mount in mounts.lines().filter_map(Mount::parse) {
            if !mount.is_v2() && !mount.has("memory") {
                continue;
            }
            let controller = (!mount.is_v2()).then_some("memory");
            let Some(own) = group_of(&listed, controller) else { continue };
            for dir in mount.dirs(root, own) {
                groups.extend(Group::open(&dir, mount.is_v2(), keeps)?);
            }
        }
        Ok(Some(Self { groups }))
    }

    /// Those of these directories.
    ///
    /// # Errors
    /// If one is no memory cgroup, or its files cannot be opened.
    pub(crate) fn of(dirs: &[PathBuf]) -> Result<Self, OsError> {
        keep_if_possible(|keeps| Self::of_dirs(dirs, keeps))
    }

    fn of_dirs(dirs: &[PathBuf], keeps: bool) -> Result<Self, OsError> {
        let mut groups = Vec::new();
        for dir in dirs {
            let is_v2 = file::metadata_of(&dir.join("cgroup.controllers")).is_ok();
            let found = Group::open(dir, is_v2, keeps)?;
            if found.is_empty() {
                return Err(file::strange(dir, "no memory cgroup with files to read"));
            }
            groups.extend(found);
        }
        Ok(Self { groups })
    }

    /// The group with the least room, of those with a limit.
    ///
    /// # Errors
    /// If a file cannot be read, or holds no number: to pass a limit over could end in an OOM kill.
    pub(crate) fn tightest(&self) -> Result<Option<(&Group, Usage)>, Unread<'_>> {
        let mut tightest: Option<(&Group, Usage)> = None;
        for group in &self.groups {
            let Some(usage) = group.look()? else { continue };
            if tightest.is_none_or(|(_, other)| usage.room() < other.room()) {
                tightest = Some((group, usage));
            }
        }
        Ok(tightest)
    }
}

/// Opens groups whose files are kept open; where there are too many, such as are not.
fn keep_if_possible<T>(open: impl Fn(bool) -> Result<T, OsError>) -> Result<T, OsError> {
    match open(true) {
        Err(error) if matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE)) => open(false),
        opened => opened,
    }
}

impl Group {
    /// What is limited by itself in `dir`: nothing if it is no memory cgroup, or the top of all;
    /// in version 1 memory, and memory with swap.
    fn open(dir: &Path, is_v2: bool, keeps: bool) -> Result<Vec<Self>, OsError> {
        let limited: &[(&[&str], &str)] = match is_v2 {
            true => &[(&["memory.max", "memory.high"], "memory.current")],
            false => &[
                (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
                (&["memory.memsw.limit_in_bytes"], "memory.memsw.usage_in_bytes"),
            ],
        };
        let mut groups = Vec::new();
        for (names, usage) in limited {
            let mut limits = [None, None];
            for (limit, name) in limits.iter_mut().zip(*names) {
                *limit = opened(dir, name, keeps)?;
            }
            let usage = opened(dir, usage, keeps)?;
            let Some(usage) = usage.filter(|_| limits[0].is_some()) else { continue };
            let stat = opened(dir, "memory.stat", keeps)?;
            groups.push(Self { is_v2, limits, usage, stat, dir: dir.to_owned() });
        }
        Ok(groups)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn is_v2(&self) -> bool {
        self.is_v2
    }

    /// What there is now; `None` without a limit.
    fn look(&self) -> Result<Option<Usage>, Unread<'_>> {
        let mut limit = UNLIMITED;
        for file in self.limits.iter().flatten() {
            limit = limit.min(self.number(file)?.unwrap_or(UNLIMITED));
        }
        if limit == UNLIMITED {
            return Ok(None);
        }
        let mut found = Usage { limit: Bytes::new(limit), ..Usage::default() };
        found.used = Bytes::new(self.number(&self.usage)?.unwrap_or(0));
        if let Some(stat) = &self.stat {
            let mut buf = [0; TEXT_MAX];
            let text = self.text(stat, &mut buf)?;
            let find = |key: &str| text.lines().find_map(|line| value(line, key, self.is_v2));
            let bytes = |key: &str| find(key).map(Bytes::new);
            found.inactive_files = bytes("inactive_file").unwrap_or(Bytes::ZERO);
            found.active_files = bytes("active_file").unwrap_or(Bytes::ZERO);
            found.refaults = find("workingset_refault_file");
            let cached = bytes(if self.is_v2 { "file" } else { "cache" }).zip(bytes("shmem"));
            let listed = found.inactive_files + found.active_files;
            // Shared memory is page cache on the lists of anonymous memory.
            found.no_files =
                cached.map(|(all, shared)| listed.saturating_sub(all.saturating_sub(shared)));
        }
        Ok(Some(found))
    }

    fn text<'a>(&self, source: &Source, buf: &'a mut [u8]) -> Result<&'a str, Unread<'_>> {
        let len = source.read(buf).map_err(|why| Unread::refused(&self.dir, "read", why))?;
        let text = &buf[..len];
        // Cut at the end of the buffer, it may end within a character.
        Ok(std::str::from_utf8(text).unwrap_or_else(|error| {
            std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default()
        }))
    }

    /// The number that a file holds; `None` for "max".
    fn number(&self, file: &Source) -> Result<Option<u64>, Unread<'_>> {
        let mut buf = [0; 64];
        let text = self.text(file, &mut buf)?.trim();
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) if text == "max" => Ok(None),
            Err(_) => Err(Unread::strange(&self.dir, text)),
        }
    }
}

impl Source {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.file {
            Some(file) => file::read_some_at(file, buf, 0),
            None => {
                let file = file::open(&self.path, OpenOptions::new().read(true))?;
                file::read_some_at(&file, buf, 0)
            }
        }
    }
}

/// The number behind `key` in a line of memory.stat, where the sums over a group and those below
/// it have names of their own in version 1.
fn value(line: &str, key: &str, is_v2: bool) -> Option<u64> {
    let line = if is_v2 { line } else { line.strip_prefix("total_")? };
    line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()
}

/// A file of a group; `None` where there is none, or none for this process.
fn opened(dir: &Path, name: &str, keeps: bool) -> Result<Option<Source>, OsError> {
    let path = dir.join(name);
    match file::open(&path, OpenOptions::new().read(true)) {
        Ok(file) => Ok(Some(Source { file: keeps.then_some(file), path })),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Ok(None),
            _ => Err(OsError::new("open", path.display().to_string(), error)),
        },
    }
}
