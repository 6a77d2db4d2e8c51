//! [`Machine`]: facts about the machine, which change the figures. Unreadable facts are `unknown`,
//! 0 or false.

use std::fs;
use std::thread::available_parallelism;

use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::memory::pagemap;
use glebe::internal::sys::page_size;
use serde::Serialize;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Machine {
    kernel: String,
    /// Processors that this process may use.
    cpus: usize,
    memory_bytes: u64,
    page_bytes: u64,
    thp: String,
    /// True if the kernel shows page frames, which needs CAP_SYS_ADMIN.
    privileged: bool,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_else(|_| "unknown".into());
        let modes = text("/sys/kernel/mm/transparent_hugepage/enabled");
        // Brackets enclose the active mode.
        let thp = modes.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self {
            kernel: text("/proc/sys/kernel/osrelease").trim().into(),
            cpus: available_parallelism().map_or(0, usize::from),
            memory_bytes: meminfo::read("MemTotal").unwrap_or_default().get(),
            page_bytes: page_size().bytes().get(),
            thp: thp.map_or("unknown", |(mode, _)| mode).into(),
            privileged: pagemap::frames_visible(),
        }
    }
}
