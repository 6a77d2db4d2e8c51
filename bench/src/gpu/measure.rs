//! [`run`]: the benchmark `gpu`.
//!
//! For each size of message copies from random places of registered memory to the device, and from
//! it, as many at once as the stream takes; then how long memory takes until the device may use
//! it. One contestant's memory at a time, round by round. Without a driver or a device every row
//! says why it has no figures.

use glebe::units::Bytes;

use super::driver::{Error, Gpu, Host, OnDevice, Way, LIBRARY};
use crate::clock;
use crate::contig::memory::{self, Kind, Memory};
use crate::contig::messages::{self, Line};
use crate::contig::name;
use crate::contig::samples::Samples;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;

/// The name on the command line and in the JSON.
pub const NAME: &str = "gpu";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Few samples of small memory.
    pub quick: bool,
    /// No memory is larger than this.
    pub largest: Option<Bytes>,
    /// The command line, for the report.
    pub command: String,
}

/// Messages beyond those of the table.
const LARGE: [u64; 2] = [64 << 20, 256 << 20];
const LINE: u64 = 64;

struct Effort {
    rounds: usize,
    /// Of the memory that messages are copied from and to.
    host: Bytes,
    /// Of memory that is had and registered.
    registered: &'static [Bytes],
    /// Messages of a sample, and bytes, at most.
    messages: u64,
    bytes: u64,
}

const EFFORT: Effort = Effort {
    rounds: 5,
    host: Bytes::gib(1),
    registered: &[Bytes::gib(1), Bytes::gib(8), Bytes::gib(32)],
    messages: 2000,
    bytes: 1 << 30,
};
const EFFORT_QUICK: Effort = Effort {
    rounds: 2,
    host: Bytes::mib(16),
    registered: &[Bytes::mib(16), Bytes::gib(32)],
    messages: 20,
    bytes: 16 << 20,
};

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Registered(Kind),
    Cuda,
    Pageable,
}

/// Every one, the base of the comparison first.
const ALL: [Who; 6] = [
    Who::Registered(Kind::Memalign),
    Who::Registered(Kind::MemalignThp),
    Who::Registered(Kind::Hugetlb),
    Who::Registered(Kind::Glebe),
    Who::Cuda,
    Who::Pageable,
];

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Registered(kind) => kind.name(),
            Self::Cuda => "cuMemHostAlloc",
            Self::Pageable => "unregistered",
        }
    }

    /// Memory that the device may use; how long having it and registering it took.
    fn host(self, gpu: &Gpu, len: Bytes) -> Result<(Host<'_>, [f64; 2]), String> {
        let start = clock::wall();
        let since = |at| clock::micros(clock::wall().saturating_sub(at));
        let said = |why: Error| why.to_string();
        match self {
            Self::Cuda => {
                memory::fits(len).map_err(|why| why.to_string())?;
                let host = gpu.host_alloc(len.as_usize()).map_err(said)?;
                Ok((host, [since(start), 0.0]))
            }
            Self::Registered(kind) => {
                let memory = Memory::obtain(kind, len).map_err(|why| why.to_string())?;
                let had = since(start);
                let at = clock::wall();
                let host = gpu.register(memory).map_err(said)?;
                Ok((host, [had, since(at)]))
            }
            Self::Pageable => {
                let memory = Memory::obtain(Kind::Memalign, len).map_err(|why| why.to_string())?;
                Ok((gpu.pageable(memory), [since(start), 0.0]))
            }
        }
    }
}

/// Runs the benchmark.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(NAME, &options.command, options.quick);
    let mut samples = Samples::default();
    let effort = if options.quick { EFFORT_QUICK } else { EFFORT };
    let outcome = Gpu::open(LIBRARY).and_then(|gpu| {
        report.note(&format!("Device: {}.", gpu.name));
        measure(&gpu, &effort, options.largest, &mut samples, &mut report)
    });
    if let Err(why) = outcome {
        absent(&why, &mut report);
    }
    samples.report(&mut report);
    ratios(&samples, &effort, &mut report);
    tables(&samples, &mut report);
    report.note(
        "Wall time of one thread; messages are issued one after the other and waited for \
         together. `glebe`, `hugetlb` and `memalign` are registered with the driver \
         (cuMemHostRegister); `obtain` is without that, `register` is that alone.",
    );
    report
}

/// Rows, ratios and the check, each without a figure.
fn absent(why: &Error, report: &mut Report) {
    let text = format!("{why}; an NVIDIA GPU with its driver is needed");
    for way in [Way::ToDevice, Way::ToHost] {
        report.absent(&case(way, messages::SIZE_MAX), "all", "MB/s", &text);
    }
    report.absent("register", "all", "us", &text);
    report.unmeasured("wrong_bytes", &text);
}

fn measure(
    gpu: &Gpu,
    effort: &Effort,
    largest: Option<Bytes>,
    samples: &mut Samples,
    report: &mut Report,
) -> Result<(), Error> {
    let most = largest.unwrap_or(Bytes::new(u64::MAX)).min(memory::largest().unwrap_or_default());
    let len = effort.host.min(most);
    let sizes: Vec<u64> = messages::sizes().chain(LARGE).filter(|&s| s <= len.get()).collect();
    let widest = sizes.iter().max().copied().unwrap_or(messages::SIZE_MIN) as usize;
    let mut device = gpu.alloc(widest)?;
    report.check("wrong_bytes", 0);
    let steps = effort.rounds * (1 + effort.registered.len()) * ALL.len();
    let mut progress = Progress::new("gpu", steps as u64);
    let mut done = 0;
    for round in 0..effort.rounds {
        for turn in 0..ALL.len() {
            let who = ALL[(turn + round) % ALL.len()];
            match who.host(gpu, len) {
                Ok((mut host, _)) => {
                    let mut copies = Copies { who, effort, len, round: round as u64, samples };
                    copies.of(&mut host, &mut device, &sizes)?;
                    let wrong = copies.wrong(&mut host, &mut device)?;
                    report.check("wrong_bytes", wrong);
                }
                Err(why) => {
                    let case = case(Way::ToDevice, messages::SIZE_MAX);
                    samples.note(&case, who.name(), "MB/s", &why);
                }
            }
            for &size in effort.registered {
                interrupt::check();
                had(gpu, who, size, most, samples);
            }
            done += 1 + effort.registered.len() as u64;
            progress.update(done);
        }
    }
    progress.finish();
    Ok(())
}

/// How long `len` bytes take until the device may use them.
fn had(gpu: &Gpu, who: Who, len: Bytes, most: Bytes, samples: &mut Samples) {
    if who == Who::Pageable {
        return;
    }
    let [obtain, register, both] =
        ["obtain", "register", "ready"].map(|what| format!("{what}_{}", name(len)));
    let outcome = match len <= most {
        true => who.host(gpu, len).map(|(_, took)| took),
        false => Err(format!("left out: --largest and free memory allow {most}")),
    };
    match outcome {
        Ok([obtained, registered]) => {
            samples.add(&obtain, who.name(), "us", obtained);
            if who != Who::Cuda {
                samples.add(&register, who.name(), "us", registered);
            }
            samples.add(&both, who.name(), "us", obtained + registered);
        }
        Err(why) => samples.note(&both, who.name(), "us", &why),
    }
}

/// One contestant's turn.
struct Copies<'a> {
    who: Who,
    effort: &'a Effort,
    len: Bytes,
    round: u64,
    samples: &'a mut Samples,
}

impl Copies<'_> {
    fn of(
        &mut self,
        host: &mut Host<'_>,
        device: &mut OnDevice<'_>,
        sizes: &[u64],
    ) -> Result<(), Error> {
        for &size in sizes {
            interrupt::check();
            let count = (self.effort.bytes / size).clamp(1, self.effort.messages);
            let places = self.places(size, count);
            for way in [Way::ToDevice, Way::ToHost] {
                let start = clock::wall();
                host.copy(way, device, &places, size as usize)?;
                let took = clock::micros(clock::wall().saturating_sub(start));
                let rate = (count * size) as f64 / took;
                self.samples.add(&case(way, size), self.who.name(), "MB/s", rate);
            }
        }
        Ok(())
    }

    /// Random places, each the start of a cache line.
    fn places(&self, size: u64, count: u64) -> Vec<usize> {
        let lines = (self.len.get() - size) / LINE + 1;
        let mut random = Random::new(self.round + size);
        (0..count).map(|_| (random.below(lines) * LINE) as usize).collect()
    }

    /// Sends bytes there and has them back elsewhere; how many are others.
    fn wrong(&self, host: &mut Host<'_>, device: &mut OnDevice<'_>) -> Result<u64, Error> {
        let half = (self.len.as_usize() / 2).min(messages::SIZE_MAX as usize);
        let byte = |at: usize| (at as u64 ^ at as u64 >> 8 ^ self.round) as u8;
        let (from, to) = host.bytes_mut().split_at_mut(half);
        from.iter_mut().enumerate().for_each(|(at, b)| *b = byte(at));
        to[..half].fill(0);
        host.copy(Way::ToDevice, device, &[0], half)?;
        host.copy(Way::ToHost, device, &[half], half)?;
        let came = host.bytes_mut()[half..][..half].iter().enumerate();
        Ok(came.filter(|&(at, &b)| b != byte(at)).count() as u64)
    }
}

fn case(way: Way, size: u64) -> String {
    match way {
        Way::ToDevice => format!("to_device_{size}"),
        Way::ToHost => format!("to_host_{size}"),
    }
}

/// Rates divide as glebe by peer, times as peer by glebe.
fn ratios(samples: &Samples, effort: &Effort, report: &mut Report) {
    let glebe = Kind::Glebe.name();
    for (peer, suffix) in [(Kind::Memalign.name(), "memalign"), (Who::Cuda.name(), "cuda_pinned")] {
        for (way, what) in [(Way::ToDevice, "to_device"), (Way::ToHost, "to_host")] {
            let rate = |who| samples.median(&case(way, messages::SIZE_MAX), who);
            report.ratio(&format!("{what}_8m_vs_{suffix}"), rate(glebe) / rate(peer));
        }
        let ready = format!("ready_{}", name(effort.registered[0]));
        let took = |who| samples.median(&ready, who);
        report.ratio(&format!("ready_vs_{suffix}"), took(peer) / took(glebe));
    }
}

/// The talk's table, in each direction.
fn tables(samples: &Samples, report: &mut Report) {
    let columns = [Kind::Memalign.name(), Kind::Glebe.name()];
    for way in [Way::ToDevice, Way::ToHost] {
        let line = |size: u64| {
            let [before, after] = columns.map(|who| samples.median(&case(way, size), who));
            Line { size, before, after }
        };
        let lines: Vec<Line> = messages::sizes()
            .chain(LARGE)
            .map(line)
            .filter(|line| line.before.is_finite() && line.after.is_finite())
            .collect();
        if !lines.is_empty() {
            let direction = if way == Way::ToDevice { "to the device" } else { "to the host" };
            let title = format!("messages {direction}, registered memory: MB/s");
            report.section(&title, &messages::table(columns, &lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_every_target_says_why() {
        let mut report = Report::new(NAME, "", true);
        absent(&Error::NoDevice, &mut report);
        ratios(&Samples::default(), &EFFORT_QUICK, &mut report);
        let ratios = ["to_device_8m_vs_memalign", "to_host_8m_vs_cuda_pinned", "ready_vs_memalign"];
        let cases = ["to_device_8388608", "to_host_8388608", "register"];
        assert!(report.missing(&cases, &ratios, &["wrong_bytes"]).is_empty());
        assert!(report.passed(), "nothing was looked at, and nothing was wrong");
        assert!(report.text().contains("lists no device"), "{}", report.text());
    }
}
