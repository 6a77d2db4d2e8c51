//! The benchmark `gpu`: host memory had in each way beside an NVIDIA GPU.
//!
//! For each size of message copies from random places of registered memory to the device, and from
//! it, as many at once as the stream takes; then how long memory takes until the device may use
//! it. One contestant's memory at a time, round by round. Without a driver or a device every row
//! says why it has no figures. Units: megabytes a second, microseconds.

mod driver;

use glebe::units::Bytes;

use crate::clock;
use crate::contig::memory::{self, Kind, Memory};
use crate::contig::name;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{in_turn, Samples};
use driver::{Error, Gpu, Host, OnDevice, Way, LIBRARY};

/// Bytes of a message; the targets are of the fourth.
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, TARGET, 64 << 20];
const TARGET: u64 = 8 << 20;
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
    registered: &[Bytes::gib(1), Bytes::gib(8)],
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
}

/// Every one, the base of the comparison first.
const ALL: [Who; 5] = [
    Who::Registered(Kind::Memalign),
    Who::Registered(Kind::MemalignThp),
    Who::Registered(Kind::Hugetlb),
    Who::Registered(Kind::Glebe),
    Who::Cuda,
];

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Registered(kind) => kind.name(),
            Self::Cuda => "cuMemHostAlloc",
        }
    }

    /// Memory that the device may use; how long having it and registering it took.
    fn host(self, gpu: &Gpu, len: Bytes) -> Result<(Host<'_>, [f64; 2]), String> {
        let start = clock::wall();
        let since = |at| clock::micros(clock::wall().saturating_sub(at));
        match self {
            Self::Cuda => {
                memory::fits(len).map_err(|why| why.to_string())?;
                let host = gpu.host_alloc(len.as_usize()).map_err(|why| why.to_string())?;
                Ok((host, [since(start), 0.0]))
            }
            Self::Registered(kind) => {
                let memory = Memory::obtain(kind, len).map_err(|why| why.to_string())?;
                let (had, at) = (since(start), clock::wall());
                let host = gpu.register(memory).map_err(|why| why.to_string())?;
                Ok((host, [had, since(at)]))
            }
        }
    }
}

/// Runs the benchmark on memory of at most `largest`.
pub(crate) fn run(quick: bool, largest: Option<Bytes>, command: &str) -> Report {
    let mut report = Report::new("gpu", command, quick);
    let mut samples = Samples::default();
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let outcome = Gpu::open(LIBRARY).and_then(|gpu| {
        report.note(&format!("Device: {}.", gpu.name));
        measure(&gpu, &effort, largest, &mut samples, &mut report)
    });
    if let Err(why) = outcome {
        absent(&why, &mut report);
    }
    samples.report(&mut report);
    ratios(&samples, &effort, &mut report);
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
        report.absent(&case(way, TARGET), "all", "MB/s", &text);
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
    let widest = SIZES.into_iter().filter(|&s| s <= len.get()).max().unwrap_or(SIZES[0]);
    let mut device = gpu.alloc(widest as usize)?;
    report.check("wrong_bytes", 0);
    let mut progress = Progress::new("gpu", (effort.rounds * ALL.len()) as u64);
    for (turn, (round, who)) in in_turn(effort.rounds, &ALL).enumerate() {
        progress.update(turn as u64);
        match who.host(gpu, len) {
            Ok((mut host, _)) => {
                copies(&mut host, &mut device, who, effort, round, samples)?;
                report.check("wrong_bytes", wrong(&mut host, &mut device, round)?);
            }
            Err(why) => samples.outcome(&case(Way::ToDevice, TARGET), who.name(), "MB/s", Err(why)),
        }
        for &size in effort.registered {
            interrupt::check();
            had(gpu, who, size, most, samples);
        }
    }
    Ok(())
}

/// How long `len` bytes take until the device may use them.
fn had(gpu: &Gpu, who: Who, len: Bytes, most: Bytes, samples: &mut Samples) {
    let case = |what| format!("{what}_{}", name(len));
    let outcome = match len <= most {
        true => who.host(gpu, len).map(|(_, took)| took),
        false => Err(format!("left out: --largest-mib and free memory allow {most}")),
    };
    if let Ok([obtained, registered]) = outcome {
        samples.add(&case("obtain"), who.name(), "us", obtained);
        if who != Who::Cuda {
            samples.add(&case("register"), who.name(), "us", registered);
        }
    }
    samples.outcome(&case("ready"), who.name(), "us", outcome.map(|took| took[0] + took[1]));
}

/// One contestant's turn.
fn copies(
    host: &mut Host<'_>,
    device: &mut OnDevice<'_>,
    who: Who,
    effort: &Effort,
    round: u64,
    samples: &mut Samples,
) -> Result<(), Error> {
    let len = host.bytes_mut().len() as u64;
    for size in SIZES.into_iter().filter(|&size| size <= len) {
        interrupt::check();
        let count = (effort.bytes / size).clamp(1, effort.messages);
        // Random places, each the start of a cache line.
        let lines = (len - size) / LINE + 1;
        let mut random = Random::new(round + size);
        let places: Vec<usize> =
            (0..count).map(|_| (random.below(lines) * LINE) as usize).collect();
        for way in [Way::ToDevice, Way::ToHost] {
            let start = clock::wall();
            host.copy(way, device, &places, size as usize)?;
            let took = clock::micros(clock::wall().saturating_sub(start));
            samples.add(&case(way, size), who.name(), "MB/s", (count * size) as f64 / took);
        }
    }
    Ok(())
}

/// Sends bytes there and has them back elsewhere; how many are others.
fn wrong(host: &mut Host<'_>, device: &mut OnDevice<'_>, round: u64) -> Result<u64, Error> {
    let half = (host.bytes_mut().len() / 2).min(TARGET as usize);
    let byte = |at: usize| (at as u64 ^ at as u64 >> 8 ^ round) as u8;
    let (from, to) = host.bytes_mut().split_at_mut(half);
    from.iter_mut().enumerate().for_each(|(at, b)| *b = byte(at));
    to[..half].fill(0);
    host.copy(Way::ToDevice, device, &[0], half)?;
    host.copy(Way::ToHost, device, &[half], half)?;
    let came = host.bytes_mut()[half..][..half].iter().enumerate();
    Ok(came.filter(|&(at, &b)| b != byte(at)).count() as u64)
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
            let rate = |who| samples.median(&case(way, TARGET), who);
            report.ratio(&format!("{what}_8m_vs_{suffix}"), rate(glebe) / rate(peer));
        }
        let ready = format!("ready_{}", name(effort.registered[0]));
        let took = |who| samples.median(&ready, who);
        report.ratio(&format!("ready_vs_{suffix}"), took(peer) / took(glebe));
    }
}
