//! Measures direct I/O between a file and registered memory, allocated in each of the [`WAYS`]: the
//! CPU time of registering and of a request.
//!
//! An io_uring registers the memory as one buffer; the device moves the bytes without the page
//! cache. The ways take turns with one file. Source: io_uring_register(2), io_uring_enter(2),
//! open(2).
//!
//! # Safety
//! `transfer` checks each place in the [`Memory`], and borrows the memory exclusively while
//! requests run. The memory outlives the ring. If a batch fails, the ring may be dropped during a
//! request, but the kernel then holds the pages itself.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use glebe::units::Bytes;
use io_uring::{opcode, types, IoUring};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::{name, WAYS};
use crate::clock::timed;
use crate::memory::{self, Memory, Way};
use crate::pressure::nameless;
use crate::report::Report;
use crate::reserve::keyed::{self, Random};
use crate::turns::{rounds, turns, NO_END};
use crate::Outcome;

const READS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
const WRITE: u64 = 1 << 20;
const DEPTH: usize = 8;
/// Bytes that are filled and checked as a unit.
const PAGE: usize = 4 << 10;

/// A quick run registers 4 MiB, because an ordinary process may usually lock that much.
pub(super) fn measure(report: &mut Report) -> Outcome {
    report.check("wrong_bytes", 0);
    // The kernel takes at most 1 GiB as one buffer.
    let len = report.plan(Bytes::mib(4), Bytes::gib(1)).min(memory::largest()?);
    for (_, (who, way)) in turns("contig, registering", report.plan(3, 5), &WAYS) {
        let took = Direct::obtain(way, len).map(|direct| direct.registered_us);
        report.outcome(&format!("register_{}", name(len)), who, "us cpu", took);
    }
    let len = report.plan(Bytes::mib(4), Bytes::mib(64));
    let file = file_in(&report.options.scratch(), len).inspect_err(|why| {
        let text = format!("{why}; --dir names another directory");
        report.remark("direct_read_65536", "all", "us cpu", &text);
    });
    let Ok(file) = file else { return Ok(()) };
    let mut contestants = Vec::new();
    for (who, way) in WAYS {
        match Direct::obtain(way, len) {
            Ok(direct) => contestants.push((who, direct)),
            Err(why) => report.outcome("direct_write_1048576", who, "us cpu", Err(why)),
        }
    }
    for round in rounds("contig, direct I/O", report.plan(3, 9), NO_END) {
        for (who, direct) in &mut contestants {
            turn(direct, who, &file, len.get(), round + 1, report)?;
        }
    }
    Ok(())
}

fn file_in(dir: &Path, len: Bytes) -> Outcome<File> {
    let file = nameless(dir, len)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT)
        .map_err(|e| format!("no direct I/O in {}: {e}", dir.display()))?;
    Ok(file)
}

fn turn(
    direct: &mut Direct,
    who: &str,
    file: &File,
    len: u64,
    round: u64,
    report: &mut Report,
) -> Outcome {
    let all: Vec<Place> = (0..len).step_by(WRITE as usize).map(|at| (at as usize, at)).collect();
    fill(direct.memory.bytes_mut(), round);
    let mut jobs = vec![("write", all.clone(), WRITE)];
    // A sample of reads has at most `read` bytes and `requests` requests.
    let (read, requests) = report.plan((2 << 20, 64), (32 << 20, 1024));
    let mut random = Random::new(round);
    for size in READS {
        let mut place = || random.below(len / size) * size;
        let count = (read / size).clamp(1, requests);
        jobs.push(("read", (0..count).map(|_| (place() as usize, place())).collect(), size));
    }
    for (what, places, size) in jobs {
        let (moved, took) = timed(|| direct.transfer(file, what == "write", &places, size));
        moved?;
        let (case, count) = (format!("direct_{what}_{size}"), places.len() as f64);
        report.add(&case, who, "us cpu", took.cpu_us / count);
        report.add(&format!("{case}_rate"), who, "MB/s", count * size as f64 / took.wall_us);
    }
    // Reads the whole file back, each byte to its own place, to check it.
    direct.memory.bytes_mut().fill(0);
    direct.transfer(file, false, &all, WRITE)?;
    report.check("wrong_bytes", wrong(direct.memory.bytes(), round));
    Ok(())
}

fn fill(bytes: &mut [u8], round: u64) {
    (0..).zip(bytes.chunks_exact_mut(PAGE)).for_each(|(at, page)| keyed::fill(page, 0, at, round));
}

fn wrong(bytes: &[u8], round: u64) -> u64 {
    let is_wrong = |(at, page): &(u64, &[u8])| keyed::version(page, 0, *at) != Some(round);
    (0..).zip(bytes.chunks_exact(PAGE)).filter(is_wrong).count() as u64 * PAGE as u64
}

/// Offsets in the memory and in the file.
type Place = (usize, u64);

struct Direct {
    // Fields drop in this order: the ring goes first, because it refers to the memory.
    ring: IoUring,
    memory: Memory,
    registered_us: f64,
}

impl Direct {
    /// Obtains memory and registers all of it. Fails if memory or io_uring is missing, or if the
    /// limit on locked memory is too low.
    fn obtain(way: Way, len: Bytes) -> Outcome<Self> {
        let mut memory = way.obtain(len)?;
        let ring = IoUring::new(DEPTH as u32).map_err(|e| format!("io_uring_setup: {e}"))?;
        let bytes = memory.bytes_mut();
        let iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the memory is in the same structure as the ring and is dropped after it.
        let (done, took) = timed(|| unsafe { ring.submitter().register_buffers(&[iovec]) });
        done.map_err(|e| format!("io_uring_register: {e}"))?;
        Ok(Self { ring, memory, registered_us: took.cpu_us })
    }

    /// Reads from `file`, or writes to it, `len` bytes for each place. Panics if a place is outside
    /// the memory.
    fn transfer(&mut self, file: &File, is_write: bool, places: &[Place], len: u64) -> Outcome {
        let (fd, size) = (types::Fd(file.as_raw_fd()), len as u32);
        for batch in places.chunks(DEPTH) {
            for &(place, offset) in batch {
                let at = self.memory.bytes_mut()[place..][..len as usize].as_mut_ptr();
                let entry = match is_write {
                    true => opcode::WriteFixed::new(fd, at, size, 0).offset(offset).build(),
                    false => opcode::ReadFixed::new(fd, at, size, 0).offset(offset).build(),
                };
                // SAFETY: the slice is inside the registered memory, which this function borrows
                // exclusively until the batch has ended.
                unsafe { self.ring.submission().push(&entry)? };
            }
            self.wait(batch.len(), size)?;
        }
        Ok(())
    }

    fn wait(&mut self, mut left: usize, size: u32) -> Outcome {
        let mut outcome = Ok(());
        while left > 0 {
            match self.ring.submit_and_wait(left) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e.into()),
                _ => {}
            }
            for ended in self.ring.completion() {
                left -= 1;
                match ended.result() {
                    moved if moved as u32 == size => {}
                    code if code < 0 => outcome = Err(io::Error::from_raw_os_error(-code).into()),
                    moved => outcome = Err(format!("{moved} of {size} bytes were moved").into()),
                }
            }
        }
        outcome
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // Unregisters now, because closing the ring may unregister the memory only later.
        let _ = self.ring.submitter().unregister_buffers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let had = file_in(dir.path(), Bytes::mib(2))
            .and_then(|file| Ok((file, Direct::obtain(Way::Memalign, Bytes::mib(2))?)));
        let Some((file, mut direct)) = crate::had(had) else { return };
        fill(direct.memory.bytes_mut(), 3);
        assert_eq!(wrong(direct.memory.bytes(), 3), 0);
        let place = |nth: usize, to: usize| ((nth + to) << 16, (nth as u64) << 16);
        let all: Vec<Place> = (0..32).map(|nth| place(nth, 0)).collect();
        direct.transfer(&file, true, &all, 1 << 16).unwrap();
        direct.memory.bytes_mut().fill(0);
        // Reads the first half of the file into the second half of the memory.
        let moved: Vec<Place> = (0..16).map(|nth| place(nth, 16)).collect();
        direct.transfer(&file, false, &moved, 1 << 16).unwrap();
        let bytes = direct.memory.bytes();
        assert_eq!((wrong(&bytes[1 << 20..], 3), wrong(bytes, 3)), (0, 2 << 20));
        assert!(bytes[..1 << 20].iter().all(|&byte| byte == 0));
        assert!(direct.transfer(&file, false, &[(0, 1 << 30)], 1 << 16).is_err(), "no bytes there");
    }
}
