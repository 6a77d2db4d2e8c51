//! Direct I/O between a file and registered memory had in each way: what registering costs, and
//! what a request costs the processor.
//!
//! Memory is registered with an io_uring as one buffer. The device moves the bytes itself, past the
//! page cache; what the memory's form changes is how many pages the kernel pins when it registers a
//! buffer and how many segments it hands the device for one request. All contestants read the same
//! file in turn. Rates are the device's as much as anybody's. Source: io_uring_register(2),
//! io_uring_enter(2), open(2).
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

use glebe::error::OsError;
use glebe::units::Bytes;
use io_uring::{opcode, types, IoUring};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::memory::{self, Kind, Memory};
use super::{name, Error};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::pressure::nameless;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{in_turn, Samples};

/// Bytes of a read.
const READS: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bytes of a write.
const WRITE: u32 = 1 << 20;
/// Requests that run at once.
const DEPTH: usize = 8;
const WORD: usize = size_of::<u64>();

struct Effort {
    /// Of the file, and of each buffer that it is moved through.
    file: Bytes,
    /// Of the buffer that is only registered: the most that the kernel takes as one.
    registered: Bytes,
    rounds: usize,
    /// Bytes read for a sample.
    read: u64,
    /// Requests of a sample at most.
    requests: u64,
}

const EFFORT: Effort = Effort {
    file: Bytes::mib(64),
    registered: Bytes::gib(1),
    rounds: 9,
    read: 32 << 20,
    requests: 1024,
};
/// Buffers within the limit on locked memory that an ordinary process has.
const EFFORT_QUICK: Effort = Effort {
    file: Bytes::mib(4),
    registered: Bytes::mib(4),
    rounds: 3,
    read: 2 << 20,
    requests: 64,
};

/// Measures and reports; the file is made in `dir` and has no name.
pub(super) fn measure(
    quick: bool,
    largest: Bytes,
    dir: &Path,
    report: &mut Report,
) -> Result<(), Error> {
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let mut samples = Samples::default();
    report.check("wrong_bytes", 0);
    let len = effort.registered.min(largest).min(memory::largest()?);
    let case = format!("register_{}", name(len));
    for (_, kind) in in_turn(effort.rounds.min(5), &Kind::ALL) {
        interrupt::check();
        let direct = Direct::obtain(kind, len);
        let took = direct.as_ref().map(|direct| direct.registered_us);
        samples.outcome(&case, kind.name(), "us cpu", took);
    }
    match file_in(dir, effort.file) {
        Ok(file) => report.check("wrong_bytes", transfers(&file, &effort, &mut samples)?),
        Err(why) => {
            let text = format!("{why}; --dir names another directory");
            report.absent("direct_read_65536", "all", "us cpu", &text);
        }
    }
    samples.report(report);
    Ok(())
}

/// A file that is read and written past the page cache.
fn file_in(dir: &Path, len: Bytes) -> Result<File, OsError> {
    let file = nameless(dir, len)?;
    let set = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT));
    set.map_err(|e| OsError::new("fcntl", "O_DIRECT", e.into()))?;
    Ok(file)
}

/// Reads and writes; returns bytes that came back different.
fn transfers(file: &File, effort: &Effort, samples: &mut Samples) -> Result<u64, Error> {
    let mut contestants = Vec::new();
    for kind in Kind::ALL {
        match Direct::obtain(kind, effort.file) {
            Ok(direct) => contestants.push((kind, direct)),
            Err(why) => {
                samples.outcome("direct_write_1048576", kind.name(), "us cpu", Err(why));
            }
        }
    }
    let mut wrong = 0;
    let mut progress = Progress::new("contig, direct I/O", effort.rounds as u64);
    for round in 0..effort.rounds as u64 {
        for (kind, direct) in &mut contestants {
            wrong += turn(direct, *kind, file, effort, round + 1, samples)?;
        }
        progress.update(round + 1);
    }
    Ok(wrong)
}

/// One contestant's turn.
fn turn(
    direct: &mut Direct,
    kind: Kind,
    file: &File,
    effort: &Effort,
    round: u64,
    samples: &mut Samples,
) -> Result<u64, Error> {
    let len = effort.file.get();
    let all: Vec<Place> = (0..len)
        .step_by(WRITE as usize)
        .map(|at| Place { memory: at as usize, file: at })
        .collect();
    let mut timed = |direct: &mut Direct, is_write, places: &[Place], size: u32| {
        interrupt::check();
        let watch = Stopwatch::start();
        direct.transfer(file, is_write, places, size)?;
        let took = watch.elapsed();
        let what = if is_write { "write" } else { "read" };
        let (case, count) = (format!("direct_{what}_{size}"), places.len() as f64);
        samples.add(&case, kind.name(), "us cpu", took.cpu_us / count);
        let rate = count * f64::from(size) / took.wall_us;
        samples.add(&format!("{case}_rate"), kind.name(), "MB/s", rate);
        Ok::<_, OsError>(())
    };
    fill(direct.memory.bytes_mut(), round);
    timed(direct, true, &all, WRITE)?;
    let mut random = Random::new(round);
    for size in READS {
        let places = len / u64::from(size);
        let count = (effort.read / u64::from(size)).clamp(1, effort.requests);
        let mut place = || random.below(places) * u64::from(size);
        let reads: Vec<Place> =
            (0..count).map(|_| Place { memory: place() as usize, file: place() }).collect();
        timed(direct, false, &reads, size)?;
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
    /// Has memory and registers all of it.
    ///
    /// # Errors
    /// Why not: no memory, no io_uring for this process, or its limit on locked memory.
    fn obtain(kind: Kind, len: Bytes) -> Result<Self, Error> {
        let mut memory = Memory::obtain(kind, len)?;
        let refused = |call, source| OsError::new(call, "a ring", source);
        let ring = IoUring::new(DEPTH as u32).map_err(|e| refused("io_uring_setup", e))?;
        let bytes = memory.bytes_mut();
        let iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let watch = Stopwatch::start();
        // SAFETY: the memory lives in the same structure as the ring and is dropped after it.
        unsafe { ring.submitter().register_buffers(&[iovec]) }
            .map_err(|e| refused("io_uring_register", e))?;
        let registered_us = watch.elapsed().cpu_us;
        Ok(Self { ring, memory, registered_us })
    }

    /// Moves `len` bytes for each of `places`, [`DEPTH`] at a time; panics if one is not inside the
    /// memory.
    ///
    /// # Errors
    /// What the kernel refuses, or fewer bytes than asked for.
    fn transfer(
        &mut self,
        file: &File,
        is_write: bool,
        places: &[Place],
        len: u32,
    ) -> Result<(), OsError> {
        places.chunks(DEPTH).try_for_each(|batch| {
            let moved = self.batch(file, is_write, batch, len);
            moved.map_err(|e| OsError::new("io_uring_enter", "a registered buffer", e))
        })
    }

    /// Every request is waited for before the call returns.
    fn batch(&mut self, file: &File, is_write: bool, batch: &[Place], len: u32) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        for place in batch {
            let at = self.memory.bytes_mut()[place.memory..][..len as usize].as_mut_ptr();
            let entry = match is_write {
                true => opcode::WriteFixed::new(fd, at, len, 0).offset(place.file).build(),
                false => opcode::ReadFixed::new(fd, at, len, 0).offset(place.file).build(),
            };
            // SAFETY: the slice above is inside the registered memory, which nobody can touch
            // before the batch has ended: this borrows it exclusively.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.map_err(|e| io::Error::other(e.to_string()))?;
        }
        let (mut left, mut outcome) = (batch.len(), Ok(()));
        while left > 0 {
            match self.ring.submit_and_wait(left) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for ended in self.ring.completion() {
                left -= 1;
                match ended.result() {
                    moved if moved == len as i32 => {}
                    moved if moved < 0 => outcome = Err(io::Error::from_raw_os_error(-moved)),
                    moved => outcome = Err(io::Error::other(format!("{moved} of {len} bytes"))),
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
        let file = match file_in(dir.path(), Bytes::mib(2)) {
            Ok(file) => file,
            Err(why) => return println!("skipped: {why}"),
        };
        let mut direct = match Direct::obtain(Kind::Memalign, Bytes::mib(2)) {
            Ok(direct) => direct,
            Err(why) => return println!("skipped: {why}"),
        };
        fill(direct.memory.bytes_mut(), 3);
        assert_eq!(different(direct.memory.bytes(), 3), 0);
        let all: Vec<Place> =
            (0..32).map(|nth| Place { memory: nth << 16, file: (nth as u64) << 16 }).collect();
        direct.transfer(&file, true, &all, 1 << 16).unwrap();
        direct.memory.bytes_mut().fill(0);
        // The first half of the file to the second half's place.
        let moved: Vec<Place> = (0..16)
            .map(|nth| Place { memory: (nth + 16) << 16, file: (nth as u64) << 16 })
            .collect();
        direct.transfer(&file, false, &moved, 1 << 16).unwrap();
        let bytes = direct.memory.bytes();
        assert_eq!(different(&bytes[1 << 20..], 3), 0);
        assert!(bytes[..1 << 20].iter().all(|&byte| byte == 0));
        let beyond = [Place { memory: 0, file: 1 << 30 }];
        assert!(direct.transfer(&file, false, &beyond, 1 << 16).is_err(), "no bytes there");
    }
}
