//! Limits of the memory and hugetlb cgroups above this process, version 1 and 2.
//!
//! A process is charged at its own group and at every one above it; those that can be seen are
//! the ones under the mount. [`Limits::find`] looks for the files once, [`Limits::tightest`]
//! reads them, about 10 µs a level. Source: proc_pid_mountinfo(5), cgroups(7),
//! admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2.

use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::path::{Component, Path, PathBuf};

use crate::error::OsError;
use crate::sys::file;
use crate::units::{Bytes, PageSize};

/// What version 1 shows for no limit, rounded down to any page size.
const UNLIMITED: u64 = i64::MAX as u64 >> 16 << 16;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Ordinary memory.
    Memory,
    /// Pages of the hugetlb pool of this size.
    Hugetlb(PageSize),
}

/// A limit and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The file that holds the limit.
    pub path: PathBuf,
    /// The most that may be used.
    pub limit: Bytes,
    /// What is used, less the page cache that the kernel drops first.
    pub usage: Bytes,
}

impl Limit {
    /// What is left.
    #[must_use]
    pub fn headroom(&self) -> Bytes {
        self.limit.saturating_sub(self.usage)
    }
}

/// The limit files of one resource, of every group above this process.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    levels: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    limit: PathBuf,
    usage: PathBuf,
    /// File and key of the page cache that counts as used but can be dropped.
    droppable: Option<(PathBuf, &'static str)>,
}

impl Limits {
    /// Finds the files below `root`, which is `/` but for fixtures.
    ///
    /// # Errors
    /// If the lists of groups or of mounts are there and cannot be read.
    pub fn find(root: &Path, resource: Resource) -> Result<Self, OsError> {
        let read = |path: &str| read(&root.join(path)).map(Option::unwrap_or_default);
        let groups = read("proc/self/cgroup")?;
        let mut levels = Vec::new();
        for mount in read("proc/self/mountinfo")?.lines().filter_map(Mount::parse) {
            let (v2, resources) = match resource {
                Resource::Memory => (mount.is_v2(), vec![Resource::Memory]),
                Resource::Hugetlb(_) if mount.has("memory_hugetlb_accounting") => {
                    (true, vec![resource, Resource::Memory])
                }
                Resource::Hugetlb(_) => (mount.is_v2(), vec![resource]),
            };
            let controller = match resource {
                Resource::Memory => "memory",
                Resource::Hugetlb(_) => "hugetlb",
            };
            if !v2 && !mount.has(controller) {
                continue;
            }
            let Some(group) = group_of(&groups, (!v2).then_some(controller)) else { continue };
            for dir in mount.dirs(root, group) {
                for resource in &resources {
                    levels.extend(files(&dir, *resource, v2));
                }
            }
        }
        Ok(Self { levels })
    }

    /// The limit with the least headroom; `None` where nothing is limited.
    ///
    /// # Errors
    /// If a limit is there and cannot be read: to pass it over could end in an OOM kill.
    pub fn tightest(&self) -> Result<Option<Limit>, OsError> {
        let mut limits = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            limits.extend(level.read()?);
        }
        Ok(limits.into_iter().min_by_key(Limit::headroom))
    }
}

impl Level {
    fn read(&self) -> Result<Option<Limit>, OsError> {
        let number = |path: &Path| -> Result<Option<u64>, OsError> {
            Ok(read(path)?.and_then(|text| text.trim().parse().ok()))
        };
        // "max" is no number and no limit.
        let limit = number(&self.limit)?.filter(|limit| *limit < UNLIMITED);
        let Some(limit) = limit else { return Ok(None) };
        let Some(usage) = number(&self.usage)? else { return Ok(None) };
        let droppable = match &self.droppable {
            Some((path, key)) => read(path)?.and_then(|text| value_of(&text, key)),
            None => None,
        };
        let (limit, usage) =
            (Bytes::new(limit), Bytes::new(usage.saturating_sub(droppable.unwrap_or(0))));
        Ok(Some(Limit { path: self.limit.clone(), limit, usage }))
    }
}

/// The text of a file; `None` where there is none, or none for this process.
fn read(path: &Path) -> Result<Option<String>, OsError> {
    match file::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => Ok(None),
        Err(error) => Err(OsError::new("read", path.display().to_string(), error)),
    }
}

/// The number behind `key` in lines of key and number.
#[must_use]
pub fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

/// The pairs of files in `dir` that limit `resource`, as far as they are there.
fn files(dir: &Path, resource: Resource, v2: bool) -> Vec<Level> {
    let level = |limit: String, usage: String, droppable: Option<&'static str>| Level {
        limit: dir.join(limit),
        usage: dir.join(usage),
        droppable: droppable.map(|key| (dir.join("memory.stat"), key)),
    };
    let levels = match (resource, v2) {
        (Resource::Memory, true) => {
            vec![level("memory.max".into(), "memory.current".into(), Some("inactive_file"))]
        }
        (Resource::Memory, false) => ["memory", "memory.memsw"]
            .map(|name| {
                level(
                    format!("{name}.limit_in_bytes"),
                    format!("{name}.usage_in_bytes"),
                    Some("total_inactive_file"),
                )
            })
            .into(),
        (Resource::Hugetlb(size), _) => ["", ".rsvd"]
            .map(|kind| {
                let name = format!("hugetlb.{}{kind}", controller_size(size));
                if v2 {
                    level(format!("{name}.max"), format!("{name}.current"), None)
                } else {
                    level(format!("{name}.limit_in_bytes"), format!("{name}.usage_in_bytes"), None)
                }
            })
            .into(),
    };
    // Where that cannot be told, reading the limit tells.
    levels.into_iter().filter(|level| file::exists(&level.limit).unwrap_or(true)).collect()
}

/// A page size as the hugetlb controller writes it: `64KB`, `2MB`, `1GB`.
fn controller_size(size: PageSize) -> String {
    match size.shift() {
        shift @ 30.. => format!("{}GB", 1_u64 << (shift - 30)),
        shift @ 20.. => format!("{}MB", 1_u64 << (shift - 20)),
        shift => format!("{}KB", (1_u64 << shift) >> 10),
    }
}

/// The group of a version 1 controller, or of version 2, in the text of `/proc/self/cgroup`.
#[must_use]
pub fn group_of<'a>(groups: &'a str, controller: Option<&str>) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match controller {
            Some(wanted) => names.split(',').any(|name| name == wanted),
            None => id == "0" && names.is_empty(),
        };
        found.then_some(path)
    })
}

/// A mount of cgroups.
#[derive(Debug)]
pub struct Mount<'a> {
    /// The group that the mount shows as its top.
    top: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of mountinfo; `None` if it is no mount of cgroups.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next().filter(|kind| matches!(*kind, "cgroup" | "cgroup2"))?;
        let options = right.nth(1).unwrap_or_default();
        let mut left = left.split(' ').skip(3);
        let top = unescape(left.next()?);
        let point = unescape(left.next()?);
        Some(Self { top, point, kind, options })
    }

    /// Whether it is of version 2.
    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.kind == "cgroup2"
    }

    /// Whether it has a controller of version 1, or an option, of that name.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|name| name == option)
    }

    /// The directories of `group` and of those above it, as far as the mount shows them; `root` is
    /// `/` but for fixtures.
    #[must_use]
    pub fn dirs(&self, root: &Path, group: &str) -> Vec<PathBuf> {
        let seen = Path::new(group).strip_prefix(&self.top).unwrap_or(Path::new(""));
        let plain = seen.components().all(|part| matches!(part, Component::Normal(_)));
        let below = if plain { seen } else { Path::new("") };
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        below.ancestors().map(|dir| point.join(dir)).collect()
    }
}

/// Space, tab, newline and backslash stand in mountinfo as three octal digits.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

pub(crate) mod events;
pub(crate) mod usage;

#[cfg(test)]
mod tests;
