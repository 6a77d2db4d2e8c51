//! With the setting `show-pages`, a program that counts the kernel's free huge pages finds those
//! that it can lease.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use glebe_lease::internal::free_at_connect;
use glebe_os::internal::sys::memory::direct_files::{memfd_create, MFD_CLOEXEC};

use crate::entry::default_page;
use crate::lease::connect;
use crate::state::{is_own, locked, State};

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static SHOWS: AtomicU8 = AtomicU8::new(UNKNOWN);

const MEMINFO: &str = "/proc/meminfo";
/// Beginnings of its lines with numbers of pages.
const TOTAL: &str = "HugePages_Total:";
const FREE: &str = "HugePages_Free:";

/// Returns a file with the number of pages, if that is what the path is about.
pub(crate) fn pages(path: &[u8]) -> Option<File> {
    let is_count = path.starts_with(b"/sys/") && path.ends_with(b"/free_hugepages");
    if !is_count && path != MEMINFO.as_bytes() || is_own() {
        return None;
    }
    if SHOWS.load(Relaxed) == OFF {
        return None;
    }
    let mut locked = locked();
    let state = locked.get();
    SHOWS.store(if state.settings.shows_pages { ON } else { OFF }, Relaxed);
    let page = default_page().filter(|_| state.settings.shows_pages)?;
    let free = |state: &State| Some(state.leasable()? / page as u64);
    if !is_count {
        return written(&listed(&std::fs::read_to_string(MEMINFO).ok()?, free(state)?));
    }
    is_of(std::str::from_utf8(path).ok()?, page, state.settings.node).then_some(())?;
    written(&format!("{}\n", free(state)?))
}

/// Puts another number of free pages into the list of memory. The list's total has them too, since
/// programs subtract.
fn listed(list: &str, pages: u64) -> String {
    let line = |line: &str| {
        let total = line.strip_prefix(TOTAL).and_then(|total| total.trim().parse::<u64>().ok());
        match total {
            Some(total) => format!("{TOTAL} {:>7}\n", total + pages),
            None if line.starts_with(FREE) => format!("{FREE} {pages:>8}\n"),
            None => format!("{line}\n"),
        }
    };
    list.lines().map(line).collect()
}

/// Returns true if the path is about pages of a size, and not about another node.
fn is_of(path: &str, page: usize, node: Option<u32>) -> bool {
    let file = format!("hugepages/hugepages-{}kB/free_hugepages", page >> 10);
    let Some(folder) = path.strip_suffix(&file) else { return false };
    match folder.strip_prefix("/sys/devices/system/node/node") {
        None => folder == "/sys/kernel/mm/",
        Some(of) => {
            let of = of.strip_suffix('/').and_then(|of| of.parse().ok());
            of.is_some_and(|of: u32| node.is_none_or(|node| node == of))
        }
    }
}

fn written(text: &str) -> Option<File> {
    // SAFETY: the name is a constant, and nobody else has the new descriptor.
    let mut file = unsafe {
        let name = c"free_hugepages".as_ptr().expose_provenance();
        File::from_raw_fd(memfd_create(name, MFD_CLOEXEC).ok()? as i32)
    };
    file.write_all(text.as_bytes()).ok()?;
    file.rewind().ok()?;
    Some(file)
}

impl State {
    /// Returns the bytes that the process may lease now.
    fn leasable(&self) -> Option<u64> {
        let free = free_at_connect(&connect().ok()?).get();
        let quota = self.settings.quota.map(|quota| quota.saturating_sub(self.counts.leased));
        Some(quota.map_or(free, |quota| quota.min(free)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_pages_of_the_list_change() {
        let list = "MemFree: 1 kB\nHugePages_Total:       7\nHugePages_Free:        0\nx: 2\n";
        let wanted = list.replace("Free:        0", "Free:       32");
        let wanted = wanted.replace("Total:       7", "Total:      39");
        assert_eq!(listed(list, 32), wanted);
        assert_eq!(listed("", 1), "");
    }

    #[test]
    fn only_the_files_of_free_pages_of_the_size_count() {
        let of = |path, node| is_of(path, 2 << 20, node);
        let machine = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        let second = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages";
        assert!(of(machine, None) && of(machine, Some(0)) && of(second, None));
        assert!(of(second, Some(1)) && !of(second, Some(0)));
        let others = [
            "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
            "/sys/devices/system/node/nodex/hugepages/hugepages-2048kB/free_hugepages",
            "/other/hugepages/hugepages-2048kB/free_hugepages",
        ];
        assert!(!others.into_iter().any(|path| of(path, None)));
    }
}
