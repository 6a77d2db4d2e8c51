//! [`Charged`] keeps the files of memory cgroups open.
//!
//! [`Charged::tightest`] allocates nothing, and opens no file unless files could not be kept open
//! (`EMFILE`, `ENFILE`).
//!
//! Figures include descendants. Files of a removed group read as `ENODEV`.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::{group_of, read, Mount, UNLIMITED};
use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::files::unread::Unread;
use crate::units::Bytes;

const TEXT_MAX: usize = 8 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub limit: Bytes,
    pub used: Bytes,
    /// Page cache that the kernel drops first, and memory marked volatile.
    pub inactive_files: Bytes,
    pub active_files: Bytes,
    /// Bytes of `inactive_files` and `active_files` that are no page cache: memory once marked
    /// volatile.
    pub no_files: Option<Bytes>,
    /// File pages dropped and read again since the group was made.
    pub refaults: Option<u64>,
}

impl Usage {
    fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.inactive_files))
    }
}

#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    is_v2: bool,
    limits: [Option<Source>; 2],
    usage: Source,
    stat: Option<Source>,
}

/// A file kept open, or opened for each read.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: Option<File>,
}

#[derive(Debug, Default)]
pub struct Charged {
    groups: Vec<Group>,
}

impl Charged {
    /// Returns `None` if the list of groups or mounts is missing or forbidden.
    pub fn open(root: &Path) -> Result<Option<Self>, OsError> {
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

    pub fn of(dirs: &[PathBuf]) -> Result<Self, OsError> {
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

    /// Returns the limited group with the least room. An unreadable limit is an error, because
    /// skipping it could end in an OOM kill.
    pub fn tightest(&self) -> Result<Option<(&Group, Usage)>, Unread<'_>> {
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

fn keep_if_possible<T>(open: impl Fn(bool) -> Result<T, OsError>) -> Result<T, OsError> {
    match open(true) {
        Err(error) if matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE)) => open(false),
        opened => opened,
    }
}

impl Group {
    /// Opens the limits of memory, and in version 1 also of memory with swap. The root cgroup of
    /// version 2 has none.
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

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn is_v2(&self) -> bool {
        self.is_v2
    }

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
            // Shared memory is page cache, but is on the anonymous lists.
            found.no_files =
                cached.map(|(all, shared)| listed.saturating_sub(all.saturating_sub(shared)));
        }
        Ok(Some(found))
    }

    fn text<'a>(&self, source: &Source, buf: &'a mut [u8]) -> Result<&'a str, Unread<'_>> {
        let len = source.read(buf).map_err(|why| Unread::refused(&self.dir, "read", why))?;
        let text = &buf[..len];
        // The end of the buffer may cut a character in two.
        Ok(std::str::from_utf8(text).unwrap_or_else(|error| {
            std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default()
        }))
    }

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

/// Returns the number after `key`. In version 1, sums over descendants begin with `total_`.
fn value(line: &str, key: &str, is_v2: bool) -> Option<u64> {
    let line = if is_v2 { line } else { line.strip_prefix("total_")? };
    line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()
}

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
