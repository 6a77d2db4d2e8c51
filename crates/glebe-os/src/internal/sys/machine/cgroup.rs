//! [`Limits`] finds the memory and hugetlb cgroup limits of this process, versions 1 and 2.
//!
//! The kernel charges a process to its group and all ancestors. The process sees only the ancestors
//! under the mount. Source: proc_pid_mountinfo(5), cgroups(7), admin-guide (cgroup-v1/memory,
//! cgroup-v2).

use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::path::{Component, Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::units::{Bytes, PageSize};

/// Bytes from which a version 1 limit means no limit, for any page size.
const UNLIMITED: u64 = i64::MAX as u64 >> 16 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Hugetlb(PageSize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub path: PathBuf,
    pub limit: Bytes,
    /// Charged bytes, without the page cache that the kernel drops first.
    pub usage: Bytes,
}

impl Limit {
    #[must_use]
    pub fn headroom(&self) -> Bytes {
        self.limit.saturating_sub(self.usage)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Limits {
    levels: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    limit: PathBuf,
    usage: PathBuf,
    /// File and key of the charged page cache that can be dropped.
    droppable: Option<(PathBuf, &'static str)>,
    /// True if the kernel charges the pages of a hugetlb pool at mmap, not at the first touch.
    is_at_mmap: bool,
}

impl Limits {
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

    /// Returns the limits that the kernel charges when a mapped page is first touched.
    #[must_use]
    pub fn at_touch(&self) -> Self {
        let levels = self.levels.iter().filter(|level| !level.is_at_mmap).cloned();
        Self { levels: levels.collect() }
    }

    /// Returns the limit with the least headroom. Skips missing and forbidden files. Any other
    /// failed read is an error, because skipping a limit could end in an OOM kill.
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
        // "max" is no number and means no limit.
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

fn read(path: &Path) -> Result<Option<String>, OsError> {
    match file::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => Ok(None),
        Err(error) => Err(OsError::new("read", path.display().to_string(), error)),
    }
}

#[must_use]
pub fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

fn files(dir: &Path, resource: Resource, v2: bool) -> Vec<Level> {
    let level = |limit: String, usage: String, droppable: Option<&'static str>| Level {
        limit: dir.join(limit),
        usage: dir.join(usage),
        droppable: droppable.map(|key| (dir.join("memory.stat"), key)),
        is_at_mmap: false,
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
                let of_kind = if v2 {
                    level(format!("{name}.max"), format!("{name}.current"), None)
                } else {
                    level(format!("{name}.limit_in_bytes"), format!("{name}.usage_in_bytes"), None)
                };
                Level { is_at_mmap: !kind.is_empty(), ..of_kind }
            })
            .into(),
    };
    // If `exists` fails, a later read of the limit reports the failure.
    levels.into_iter().filter(|level| file::exists(&level.limit).unwrap_or(true)).collect()
}

/// Formats a size as `64KB`, `2MB` or `1GB`.
fn controller_size(size: PageSize) -> String {
    match size.shift() {
        shift @ 30.. => format!("{}GB", 1_u64 << (shift - 30)),
        shift @ 20.. => format!("{}MB", 1_u64 << (shift - 20)),
        shift => format!("{}KB", (1_u64 << shift) >> 10),
    }
}

/// Returns this process's group from the text of `/proc/self/cgroup`: the group of a version 1
/// controller or, for `None`, of version 2.
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

#[derive(Debug)]
pub struct Mount<'a> {
    top: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
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

    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.kind == "cgroup2"
    }

    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|name| name == option)
    }

    /// Returns the directories of `group` and its ancestors up to the mount point, or only the
    /// mount point if `group` is outside.
    #[must_use]
    pub fn dirs(&self, root: &Path, group: &str) -> Vec<PathBuf> {
        let seen = Path::new(group).strip_prefix(&self.top).unwrap_or(Path::new(""));
        let plain = seen.components().all(|part| matches!(part, Component::Normal(_)));
        let below = if plain { seen } else { Path::new("") };
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        below.ancestors().map(|dir| point.join(dir)).collect()
    }
}

/// Decodes the octal escapes (`\040`) of mountinfo.
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

pub mod events;
pub mod usage;

#[cfg(test)]
mod tests;
