//! Direct I/O between a file and registered memory had in each way: what registering costs, and
//! what a request costs the processor.
//!
//! The device moves the bytes itself; what the memory's form changes is how many pages the kernel
//! pins when it registers a buffer and how many segments it hands the device for one request. All
//! contestants read the same file in turn. Rates are the device's as much as anybody's.

use std::fs::File;
use std::path::Path;

use glebe::error::OsError;
use glebe::units::Bytes;

use super::memory::{Kind, Memory};
use super::ring::{bypass_cache, Direct, Place, Way, BUFFER_MAX};
use super::samples::Samples;
use super::{memory, name, Error};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::pressure::nameless;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;

/// Bytes of a read.
const READS: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bytes of a write.
const WRITE: u32 = 1 << 20;

struct Effort {
    /// Of the file, and of each buffer that it is moved through.
    file: Bytes,
    /// Of the buffer that is only registered.
    registered: Bytes,
    rounds: usize,
    /// Bytes read for a sample.
    read: u64,
    /// Requests of a sample at most.
    requests: u64,
}

const EFFORT: Effort = Effort {
    file: Bytes::mib(64),
    registered: BUFFER_MAX,
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
    register(&effort, largest, &mut samples)?;
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

fn file_in(dir: &Path, len: Bytes) -> Result<File, OsError> {
    let file = nameless(dir, len)?;
    bypass_cache(&file)?;
    Ok(file)
}

/// How long one large buffer takes to register.
fn register(effort: &Effort, largest: Bytes, samples: &mut Samples) -> Result<(), Error> {
    let len = effort.registered.min(largest).min(memory::largest()?);
    let case = format!("register_{}", name(len));
    let mut refused = Vec::new();
    for round in 0..effort.rounds.min(5) {
        for turn in 0..Kind::ALL.len() {
            let kind = Kind::ALL[(turn + round) % Kind::ALL.len()];
            interrupt::check();
            if refused.contains(&kind) {
                continue;
            }
            let registered = Memory::obtain(kind, len).and_then(|m| Ok(Direct::register(m)?));
            match registered {
                Ok(direct) => {
                    samples.add(&case, kind.name(), "us cpu", direct.registered().cpu_us);
                }
                Err(why) => {
                    samples.note(&case, kind.name(), "us cpu", &why.to_string());
                    refused.push(kind);
                }
            }
        }
    }
    Ok(())
}

/// One contestant's buffer.
struct Contestant {
    kind: Kind,
    direct: Direct,
}

/// Reads and writes; returns bytes that came back different.
fn transfers(file: &File, effort: &Effort, samples: &mut Samples) -> Result<u64, Error> {
    let mut contestants = Vec::new();
    for kind in Kind::ALL {
        match Memory::obtain(kind, effort.file).and_then(|m| Ok(Direct::register(m)?)) {
            Ok(direct) => contestants.push(Contestant { kind, direct }),
            Err(why) => {
                samples.note("direct_write_1048576", kind.name(), "us cpu", &why.to_string());
            }
        }
    }
    let mut wrong = 0;
    let mut progress = Progress::new("contig, direct I/O", effort.rounds as u64);
    for round in 0..effort.rounds {
        for contestant in &mut contestants {
            wrong += contestant.round(file, effort, round as u64 + 1, samples)?;
        }
        progress.update(round as u64 + 1);
    }
    progress.finish();
    Ok(wrong)
}

impl Contestant {
    fn round(
        &mut self,
        file: &File,
        effort: &Effort,
        round: u64,
        samples: &mut Samples,
    ) -> Result<u64, Error> {
        let len = effort.file.get();
        let write: Vec<Place> = (0..len / u64::from(WRITE))
            .map(|nth| nth * u64::from(WRITE))
            .map(|at| Place { memory: at as usize, file: at })
            .collect();
        fill(self.direct.memory().bytes_mut(), round);
        self.timed(file, Way::Write, &write, WRITE, samples)?;
        let mut random = Random::new(round);
        for size in READS {
            interrupt::check();
            let places = len / u64::from(size);
            let count = (effort.read / u64::from(size)).clamp(1, effort.requests);
            let reads: Vec<Place> = (0..count)
                .map(|_| {
                    let mut place = || random.below(places) * u64::from(size);
                    Place { memory: place() as usize, file: place() }
                })
                .collect();
            self.timed(file, Way::Read, &reads, size, samples)?;
        }
        // All of it, each byte to its own place.
        self.direct.memory().bytes_mut().fill(0);
        self.direct.transfer(file, Way::Read, &write, WRITE)?;
        Ok(different(self.direct.memory().bytes(), round))
    }

    fn timed(
        &mut self,
        file: &File,
        way: Way,
        places: &[Place],
        size: u32,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let watch = Stopwatch::start();
        self.direct.transfer(file, way, places, size)?;
        let took = watch.elapsed();
        let what = match way {
            Way::Read => "direct_read",
            Way::Write => "direct_write",
        };
        let (who, count) = (self.kind.name(), places.len() as f64);
        samples.add(&format!("{what}_{size}"), who, "us cpu", took.cpu_us / count);
        let rate = count * f64::from(size) / took.wall_us;
        samples.add(&format!("{what}_{size}_rate"), who, "MB/s", rate);
        Ok(())
    }
}

/// Words that only a round and a place have.
fn fill(bytes: &mut [u8], round: u64) {
    for (at, word) in bytes.chunks_exact_mut(size_of::<u64>()).enumerate() {
        word.copy_from_slice(&word_of(at, round));
    }
}

fn different(bytes: &[u8], round: u64) -> u64 {
    let words = bytes.chunks_exact(size_of::<u64>()).enumerate();
    let wrong = words.filter(|&(at, word)| word != word_of(at, round)).count();
    (wrong * size_of::<u64>()) as u64
}

fn word_of(at: usize, round: u64) -> [u8; 8] {
    ((at as u64) << 8 | round & 0xff).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_is_written_is_read_again_where_it_belongs() {
        let dir = Scratch::new("direct");
        let file = match file_in(dir.path(), Bytes::mib(2)) {
            Ok(file) => file,
            Err(why) => return println!("skipped: {why}"),
        };
        let memory = Memory::obtain(Kind::Memalign, Bytes::mib(2)).unwrap();
        let mut direct = match Direct::register(memory) {
            Ok(direct) => direct,
            Err(why) => return println!("skipped: {why}"),
        };
        fill(direct.memory().bytes_mut(), 3);
        assert_eq!(different(direct.memory().bytes(), 3), 0);
        let all: Vec<Place> =
            (0..32).map(|nth| Place { memory: nth << 16, file: (nth as u64) << 16 }).collect();
        direct.transfer(&file, Way::Write, &all, 1 << 16).unwrap();
        direct.memory().bytes_mut().fill(0);
        // The first half to the second half's place.
        let moved: Vec<Place> = (0..16)
            .map(|nth| Place { memory: (nth + 16) << 16, file: (nth as u64) << 16 })
            .collect();
        direct.transfer(&file, Way::Read, &moved, 1 << 16).unwrap();
        let bytes = direct.memory().bytes();
        assert_eq!(different(&bytes[1 << 20..], 3), 0);
        assert!(bytes[..1 << 20].iter().all(|&byte| byte == 0));
        let beyond = [Place { memory: 0, file: 1 << 30 }];
        assert!(direct.transfer(&file, Way::Read, &beyond, 1 << 16).is_err(), "no bytes there");
    }
}
