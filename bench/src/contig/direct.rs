//! Direct I/O between a file and registered memory had in each way: what registering costs, and
//! what a request costs the processor.
//!
//! Memory is registered with an io_uring as one buffer; the device moves the bytes itself, past the
//! page cache. All contestants read the same file in turn. Rates are the device's as much as
//! anybody's. Source: io_uring_register(2), io_uring_enter(2), open(2).
//!
//! # Safety
//! The ring names places of a [`Memory`] that lives as long as the ring and is checked for each
//! request; while requests run, the memory is borrowed exclusively. A ring that is dropped with a
//! request under way (a batch that failed) leaves the pages to the kernel, which holds them itself.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use glebe::units::Bytes;
use io_uring::{opcode, types, IoUring};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::{name, WAYS};
use crate::clock::Stopwatch;
use crate::memory::{self, Memory, Way};
use crate::pressure::nameless;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{rounds, turns, NO_END};
use crate::Outcome;

/// Bytes of a read.
const READS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bytes of a write.
const WRITE: u64 = 1 << 20;
/// Requests that run at once.
const DEPTH: usize = 8;
const WORD: usize = size_of::<u64>();

/// Measures and reports. In a quick run all buffers are within the limit on locked memory that an
/// ordinary process has.
pub(super) fn measure(report: &mut Report) -> Outcome {
    report.check("wrong_bytes", 0);
    // As much as the kernel takes as one buffer.
    let len = report.plan(Bytes::mib(4), Bytes::gib(1));
    let len = len.min(report.options.largest()).min(memory::largest()?);
    for (_, (who, way)) in turns("contig, registering", report.plan(3, 5), &WAYS) {
        let took = Direct::obtain(way, len).map(|direct| direct.registered_us);
        report.outcome(&format!("register_{}", name(len)), who, "us cpu", took);
    }
    let len = report.plan(Bytes::mib(4), Bytes::mib(64));
    let file = match file_in(&report.options.scratch(), len) {
        Ok(file) => file,
        Err(why) => {
            let text = format!("{why}; --dir names another directory");
            report.remark("direct_read_65536", "all", "us cpu", &text);
            return Ok(());
        }
    };
    let mut contestants = Vec::new();
    for (who, way) in WAYS {
        match Direct::obtain(way, len) {
            Ok(direct) => contestants.push((who, direct)),
            Err(why) => report.outcome("direct_write_1048576", who, "us cpu", Err(why)),
        }
    }
    for round in rounds("contig, direct I/O", report.plan(3, 9), NO_END) {
        for (who, direct) in &mut contestants {
            let wrong = turn(direct, who, &file, len.get(), round + 1, report)?;
            report.check("wrong_bytes", wrong);
        }
    }
    Ok(())
}

/// A file that is read and written past the page cache, and has no name.
fn file_in(dir: &Path, len: Bytes) -> Outcome<File> {
    let file = nameless(dir, len)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT)
        .map_err(|e| format!("no direct I/O in {}: {e}", dir.display()))?;
    Ok(file)
}

/// One contestant's turn; bytes that came back different.
fn turn(
    direct: &mut Direct,
    who: &str,
    file: &File,
    len: u64,
    round: u64,
    report: &mut Report,
) -> Outcome<u64> {
    let all: Vec<Place> = (0..len)
        .step_by(WRITE as usize)
        .map(|at| Place { memory: at as usize, file: at })
        .collect();
    fill(direct.memory.bytes_mut(), round);
    let mut jobs = vec![("write", all.clone(), WRITE)];
    // Bytes read for a sample, and requests of one at most.
    let (read, requests) = report.plan((2 << 20, 64), (32 << 20, 1024));
    let mut random = Random::new(round);
    for size in READS {
        let mut place = || random.below(len / size) * size;
        let count = (read / size).clamp(1, requests);
        let places = (0..count).map(|_| Place { memory: place() as usize, file: place() });
        jobs.push(("read", places.collect(), size));
    }
    for (what, places, size) in jobs {
        let watch = Stopwatch::start();
        direct.transfer(file, what == "write", &places, size)?;
        let took = watch.elapsed();
        let (case, count) = (format!("direct_{what}_{size}"), places.len() as f64);
        report.add(&case, who, "us cpu", took.cpu_us / count);
        let rate = count * size as f64 / took.wall_us;
        report.add(&format!("{case}_rate"), who, "MB/s", rate);
    }
    // All of it, each byte to its own place.
    direct.memory.bytes_mut().fill(0);
    direct.transfer(file, false, &all, WRITE)?;
    Ok(different(direct.memory.bytes(), round))
}

/// Words that only a round and a place have.
fn fill(bytes: &mut [u8], round: u64) {
    for (at, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&word_of(at, round));
    }
}

fn different(bytes: &[u8], round: u64) -> u64 {
    let words = bytes.chunks_exact(WORD).enumerate();
    (words.filter(|&(at, word)| word != word_of(at, round)).count() * WORD) as u64
}

fn word_of(at: usize, round: u64) -> [u8; WORD] {
    ((at as u64) << 8 | round & 0xff).to_ne_bytes()
}

/// A place in the memory and one in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    memory: usize,
    file: u64,
}

/// Registered memory.
struct Direct {
    // In this order: the ring names the memory.
    ring: IoUring,
    memory: Memory,
    registered_us: f64,
}

impl Direct {
    /// Has memory and registers all of it; an error says why not: no memory, no io_uring for this
    /// process, or its limit on locked memory.
    fn obtain(way: Way, len: Bytes) -> Outcome<Self> {
        let mut memory = way.obtain(len)?;
        let ring = IoUring::new(DEPTH as u32).map_err(|e| format!("io_uring_setup: {e}"))?;
        let bytes = memory.bytes_mut();
        let iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let watch = Stopwatch::start();
        // SAFETY: the memory lives in the same structure as the ring and is dropped after it.
        unsafe { ring.submitter().register_buffers(&[iovec]) }
            .map_err(|e| format!("io_uring_register: {e}"))?;
        let registered_us = watch.elapsed().cpu_us;
        Ok(Self { ring, memory, registered_us })
    }

    /// Moves `len` bytes for each of `places`, [`DEPTH`] at a time; panics if one is not inside the
    /// memory.
    fn transfer(&mut self, file: &File, is_write: bool, places: &[Place], len: u64) -> Outcome {
        places.chunks(DEPTH).try_for_each(|batch| self.batch(file, is_write, batch, len))
    }

    /// Every request is waited for before the call returns.
    fn batch(&mut self, file: &File, is_write: bool, batch: &[Place], len: u64) -> Outcome {
        let (fd, size) = (types::Fd(file.as_raw_fd()), len as u32);
        for place in batch {
            let at = self.memory.bytes_mut()[place.memory..][..len as usize].as_mut_ptr();
            let entry = match is_write {
                true => opcode::WriteFixed::new(fd, at, size, 0).offset(place.file).build(),
                false => opcode::ReadFixed::new(fd, at, size, 0).offset(place.file).build(),
            };
            // SAFETY: the slice above is inside the registered memory, which nobody can touch
            // before the batch has ended: this borrows it exclusively.
            unsafe { self.ring.submission().push(&entry)? };
        }
        let (mut left, mut outcome) = (batch.len(), Ok(()));
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
                    moved => outcome = Err(format!("{moved} of {len} bytes were moved").into()),
                }
            }
        }
        outcome
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // At once; closing the ring would do it some time later. Nothing is under way.
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
        let (file, mut direct) = match had {
            Ok(had) => had,
            Err(why) => return println!("skipped: {why}"),
        };
        fill(direct.memory.bytes_mut(), 3);
        assert_eq!(different(direct.memory.bytes(), 3), 0);
        let place =
            |nth: usize, to: usize| Place { memory: (nth + to) << 16, file: (nth as u64) << 16 };
        let all: Vec<Place> = (0..32).map(|nth| place(nth, 0)).collect();
        direct.transfer(&file, true, &all, 1 << 16).unwrap();
        direct.memory.bytes_mut().fill(0);
        // The first half of the file to the second half's place.
        let moved: Vec<Place> = (0..16).map(|nth| place(nth, 16)).collect();
        direct.transfer(&file, false, &moved, 1 << 16).unwrap();
        let bytes = direct.memory.bytes();
        assert_eq!(different(&bytes[1 << 20..], 3), 0);
        assert!(bytes[..1 << 20].iter().all(|&byte| byte == 0));
        let beyond = [Place { memory: 0, file: 1 << 30 }];
        assert!(direct.transfer(&file, false, &beyond, 1 << 16).is_err(), "no bytes there");
    }
}
