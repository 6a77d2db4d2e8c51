//! Starts on an aged machine: single pages of a program everywhere, and page cache in all the rest.
//!
//! The server set its memory aside before. Between two tries, page cache fills all memory again,
//! because the raised pool gives back huge pages. Units: ms.

use std::fs::File;
use std::os::unix::fs::FileExt;

use glebe::internal::sys::machine::meminfo;
use glebe::units::Bytes;

use super::origin::Origin;
use crate::contig::fragment::Taker;
use crate::report::Report;
use crate::turns::turns;
use crate::{interrupt, memory, Outcome};

/// Times of starts, and whether each had its huge pages.
pub(super) const POSTGRES: [&str; 2] = ["aged_postgres_start", "aged_postgres_started"];
pub(super) const JAVA: [&str; 2] = ["aged_java_start", "aged_java_started"];
const PEERS: [Origin; 2] = [Origin::Glebe, Origin::Raised];
const STEP: Bytes = Bytes::mib(32);
/// A step that leaves so much less memory free was not in vain.
const LESS: Bytes = Bytes::mib(4);
/// Steps in vain after which memory counts as full.
const IN_VAIN_MAX: u32 = 8;

/// Calls `start`, which returns true if the program had its huge pages.
pub(super) fn measure(
    [case, had]: [&str; 2],
    report: &mut Report,
    mut start: impl FnMut(Origin, &mut Report) -> Outcome<bool>,
) -> Outcome {
    let most = report.plan(Bytes::mib(512), memory::largest()?);
    let mut cache = PageCache::new(report)?;
    let _taker = Taker::new("fragment", most)?;
    for (_, origin) in turns(case, report.plan(1, 20), &PEERS) {
        cache.fill(report.plan(Bytes::mib(512), Bytes::new(u64::MAX)))?;
        let started = start(origin, report)?;
        report.add(had, origin.name(""), "share", f64::from(u8::from(started)));
    }
    Ok(())
}

/// A file of holes, which is read into the page cache. Removed with the process.
struct PageCache {
    file: File,
    next: u64,
}

impl PageCache {
    fn new(report: &Report) -> Outcome<Self> {
        let file = tempfile::tempfile_in(report.options.scratch())?;
        file.set_len(meminfo::read("MemTotal")?.get() * 2)?;
        Ok(Self { file, next: 0 })
    }

    /// Reads on in the file until free memory gets no less, or `most` bytes were read. The kernel
    /// keeps some memory free, more of it while others ask for huge pages.
    fn fill(&mut self, most: Bytes) -> Outcome {
        let mut buffer = vec![0; STEP.as_usize()];
        let (mut left, mut lowest, mut in_vain) = (most.get(), meminfo::read("MemFree")?, 0);
        while in_vain < IN_VAIN_MAX && left > 0 {
            interrupt::check();
            let read = self.file.read_at(&mut buffer, self.next)? as u64;
            self.next = if read == 0 { 0 } else { self.next + read };
            left = left.saturating_sub(STEP.get());
            let free = meminfo::read("MemFree")?;
            in_vain = if free + LESS <= lowest { 0 } else { in_vain + 1 };
            lowest = lowest.min(free);
        }
        Ok(())
    }
}
