//! [`least`] returns the least limit on this process's memory without allocating, for allocators.
//!
//! [`least`] reads only the cgroups of `/proc/self/cgroup` below `/sys/fs/cgroup`, and their
//! ancestors; [`cgroup`](super::cgroup) finds every limit.

use std::ffi::CStr;

use crate::internal::sys::files::plain_file::{self, Plain};
use crate::internal::sys::processes::lean;

/// Longest line of `/proc/self/cgroup`, in bytes. Longer ones are skipped.
const LINE: usize = 2048;
const PATH: usize = 512;

/// Returns the least limit in bytes, or the machine's memory if that is less.
#[must_use]
pub fn least() -> Option<u64> {
    let mut least = lean::machine_memory();
    if let Some(file) = Plain::open(c"/proc/self/cgroup") {
        each_line(&file, |line| {
            let limit = place_of(line).and_then(|place| least_of(place, value_of));
            least = least.into_iter().chain(limit).min();
        });
    }
    least
}

fn each_line(file: &Plain, mut each: impl FnMut(&[u8])) {
    let (mut part, mut filled, mut is_long) = ([0; LINE], 0, false);
    loop {
        let got = plain_file::read(file, &mut part[filled..]);
        filled += got;
        let mut rest = &part[..filled];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if !std::mem::take(&mut is_long) {
                each(&rest[..end]);
            }
            rest = &rest[end + 1..];
        }
        if got == 0 {
            if !is_long {
                each(rest);
            }
            return;
        }
        is_long |= rest.len() == LINE;
        let left = if is_long { 0 } else { rest.len() };
        part.copy_within(filled - left..filled, 0);
        filled = left;
    }
}

/// Mount of the hierarchy, path of the cgroup, and name of the limit's file.
type Place<'a> = (&'static str, &'a [u8], &'static str);

/// Parses a line `number:controllers:path`.
fn place_of(line: &[u8]) -> Option<Place<'_>> {
    let mut fields = line.splitn(3, |byte| *byte == b':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    if controllers.is_empty() {
        return Some(("/sys/fs/cgroup", path, "/memory.max"));
    }
    let is_memory = controllers.split(|byte| *byte == b',').any(|name| name == b"memory");
    is_memory.then_some(("/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes"))
}

fn least_of((base, path, name): Place<'_>, value: impl Fn(&CStr) -> Option<u64>) -> Option<u64> {
    let mut least = None;
    let mut len = path.len();
    loop {
        while len > 0 && path[len - 1] == b'/' {
            len -= 1;
        }
        let mut whole = [0; PATH];
        let parts = [base.as_bytes(), &path[..len], name.as_bytes()];
        let found = joined(parts, &mut whole).and_then(&value);
        least = least.into_iter().chain(found).min();
        if len == 0 {
            return least;
        }
        len = path[..len].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    }
}

fn joined<'a>(parts: [&[u8]; 3], whole: &'a mut [u8; PATH]) -> Option<&'a CStr> {
    let mut end = 0;
    for part in parts {
        whole.get_mut(end..end + part.len())?.copy_from_slice(part);
        end += part.len();
    }
    CStr::from_bytes_until_nul(whole).ok()
}

/// Reads a number; `None` for `max` or on failure.
fn value_of(path: &CStr) -> Option<u64> {
    let mut text = [0; 32];
    let len = plain_file::read(&Plain::open(path)?, &mut text);
    std::str::from_utf8(text[..len].trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_groups_above_counts() {
        let v2: Place = ("/sys/fs/cgroup", b"/a/b", "/memory.max");
        assert_eq!(place_of(b"0::/a/b"), Some(v2));
        let v1: Place = ("/sys/fs/cgroup/memory", b"/", "/memory.limit_in_bytes");
        assert_eq!(place_of(b"7:cpu,memory:/"), Some(v1));
        assert_eq!((place_of(b"3:cpu:/a"), place_of(b""), place_of(b"x")), (None, None, None));
        let value = |path: &CStr| match path.to_bytes() {
            b"/sys/fs/cgroup/a/b/memory.max" => Some(5),
            b"/sys/fs/cgroup/a/memory.max" => Some(3),
            b"/sys/fs/cgroup/memory.max" => Some(4),
            other => panic!("{}", other.escape_ascii()),
        };
        assert_eq!(least_of(v2, value), Some(3));
        assert_eq!(least_of(v1, |_| None), None);
        let long: Place = ("/g", &[b'a'; PATH], "/m");
        let value = |path: &CStr| (path == c"/g/m").then_some(1);
        assert_eq!(least_of(long, value), Some(1), "those above are asked");
    }

    #[test]
    fn every_line_of_a_long_list_is_seen() {
        let scratch = glebe_testing::Scratch::new("cgroups");
        let path = scratch.path().join("list");
        let line = |n: usize| format!("{n}:{}", "x".repeat(n * 40));
        let mut lines: Vec<String> = (0..40).map(line).collect();
        lines.insert(20, "long".repeat(LINE));
        std::fs::write(&path, lines.join("\n")).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut seen = Vec::new();
        let file = Plain::open(&path).unwrap();
        each_line(&file, |line| seen.push(String::from_utf8(line.to_vec()).unwrap()));
        lines.remove(20);
        assert_eq!(seen, lines);
    }

    #[test]
    fn it_is_no_more_than_the_machine_has() {
        assert!(least().unwrap() <= lean::machine_memory().unwrap());
    }
}
