//! The benchmark `gpu`: host memory had in each way beside an NVIDIA GPU.
//!
//! How long memory takes until the device may use it, then copies of messages from random places of
//! it to the device, and back; one contestant's memory at a time. Without a driver or a device
//! every row says why it has no figures. Units: megabytes a second, microseconds of wall time.

mod driver;

use glebe::units::Bytes;

use crate::contig::{name, WAYS};
use crate::memory::{self, Way};
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::turns;
use crate::{clock, Outcome};
use driver::{Gpu, Host, LIBRARY};

/// Bytes of a message.
const SIZES: [u64; 3] = [64 << 10, TARGET, 64 << 20];
/// The one that the ratios are of.
const TARGET: u64 = 8 << 20;
const LINE: u64 = 64;
/// Memory that the driver pins itself.
const CUDA: &str = "cuMemHostAlloc";
/// Whether the bytes go to the device.
const DIRECTIONS: [(&str, bool); 2] = [("to_device", true), ("to_host", false)];

/// Runs the benchmark.
pub(crate) fn run(report: &mut Report) -> Outcome {
    let wanted = report.plan(Bytes::mib(16), Bytes::gib(1));
    let len = wanted.min(report.options.largest()).min(memory::largest()?);
    let ready = format!("ready_{}", name(len));
    if let Err(why) =
        Gpu::open(LIBRARY, len.as_usize()).and_then(|gpu| measure(&gpu, len, &ready, report))
    {
        let text = format!("{why}; an NVIDIA GPU with its driver is needed");
        DIRECTIONS
            .iter()
            .for_each(|(what, _)| report.remark(&case(what, TARGET), "all", "MB/s", &text));
        report.remark(&ready, "all", "us", &text);
        report.unmeasured("wrong_bytes", &text);
    }
    for (peer, suffix) in [(WAYS[0].0, "memalign"), (CUDA, "cuda_pinned")] {
        for (what, _) in DIRECTIONS {
            let rate = |who| report.median(&case(what, TARGET), who);
            report.ratio(&format!("{what}_8m_vs_{suffix}"), rate("glebe") / rate(peer));
        }
        let vs = report.median(&ready, peer) / report.median(&ready, "glebe");
        report.ratio(&format!("ready_vs_{suffix}"), vs);
    }
    report.note(
        "Wall time of one thread, which waits for each message. All but `cuMemHostAlloc` is \
         registered with the driver (cuMemHostRegister); `ready` is having and registering it.",
    );
    Ok(())
}

fn case(what: &str, size: u64) -> String {
    format!("{what}_{size}")
}

fn measure(gpu: &Gpu, len: Bytes, ready: &str, report: &mut Report) -> Outcome {
    let ways = WAYS.map(|(who, way)| (who, Some(way)));
    let ways: Vec<(&str, Option<Way>)> = ways.into_iter().chain([(CUDA, None)]).collect();
    let (messages, bytes) = report.plan((20, 16 << 20), (2000, 1 << 30));
    for (round, (who, way)) in turns("gpu", report.plan(2, 5), &ways) {
        let start = clock::wall();
        let host = match way {
            Some(way) => way.obtain(len).and_then(|memory| gpu.register(memory)),
            None => memory::fits(len).and_then(|()| gpu.host_alloc(len.as_usize())),
        };
        let took = clock::micros(clock::wall() - start);
        report.outcome(ready, who, "us", host.as_ref().map(|_| took));
        let Ok(mut host) = host else { continue };
        for size in SIZES.into_iter().filter(|&size| size <= len.get()) {
            for (what, to_device) in DIRECTIONS {
                // Random places, each the start of a cache line.
                let mut random = Random::new(round + size);
                let lines = (len.get() - size) / LINE + 1;
                let count = (bytes / size).clamp(1, messages);
                let start = clock::wall();
                for _ in 0..count {
                    let place = random.below(lines) * LINE;
                    host.copy(to_device, place as usize, size as usize)?;
                }
                let took = clock::micros(clock::wall() - start);
                report.add(&case(what, size), who, "MB/s", (count * size) as f64 / took);
            }
        }
        report.check("wrong_bytes", wrong(&mut host, round)?);
    }
    Ok(())
}

/// Sends bytes there and has them back elsewhere; how many are others.
fn wrong(host: &mut Host<'_>, round: u64) -> Outcome<u64> {
    let half = (host.bytes_mut().len() / 2).min(TARGET as usize);
    let byte = |at: usize| (at as u64 ^ at as u64 >> 8 ^ round) as u8;
    let (from, to) = host.bytes_mut().split_at_mut(half);
    from.iter_mut().enumerate().for_each(|(at, b)| *b = byte(at));
    to[..half].fill(0);
    host.copy(true, 0, half)?;
    host.copy(false, half, half)?;
    let came = host.bytes_mut()[half..][..half].iter().enumerate();
    Ok(came.filter(|&(at, &b)| b != byte(at)).count() as u64)
}
