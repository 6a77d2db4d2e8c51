//! Runs that are required on demand of a machine whose memory a program has fragmented, while that
//! holds it and after it has ended; a reserve as it is by default; and a run out of evacuated
//! memory blocks.
//!
//! Before each try a reader of page frames that shares no code with the library looks for the
//! longest free run ([`frames`]): a try in which it saw twice the run should succeed. Units:
//! microseconds to have a run, milliseconds to give it back, MiB.

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::fragment::Fragmenter;
use super::samples::Samples;
use super::{frames, name};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::peers::{longest_run, Peer};
use crate::report::Report;

/// The share of tries that succeeded, of those that should.
const SHARE: &str = "required_on_demand";
/// The longest run of a default reserve over the best that the reader saw.
const DEFAULT: &str = "default_run_vs_longest";
const LOST: &str = "page_cache_lost";
const GIVEN_BACK: &str = "given_back_ms";
const EVACUATE: &str = "evacuate_128m";
const BLOCKS: &str = "blocks";

/// How much is asked for.
pub(super) struct Effort {
    pub(super) run: Bytes,
    /// In each state, each of which may make the kernel compact for seconds.
    pub(super) tries: u64,
    pub(super) reserve: Bytes,
    /// Out of memory blocks; in a quick run none: they are the machine's.
    pub(super) evacuations: u64,
}

/// Measures while `fragmenter` holds what it took, and after it has ended.
pub(super) fn measure(
    fragmenter: Fragmenter,
    effort: &Effort,
    report: &mut Report,
    samples: &mut Samples,
) {
    let mut tries = Tries { effort, samples, seen: 0, had: 0 };
    tries.ask("glebe_on_demand");
    tries.ask_peers();
    drop(fragmenter);
    tries.ask("glebe_after_it_ended");
    let share = tries.had as f64 / tries.seen as f64;
    report.note(&format!(
        "Of {} runs required on demand while a free run of twice the length was there, {} were \
         had; where frames are hidden nobody can tell.",
        tries.seen, tries.had
    ));
    report.ratio(SHARE, if tries.seen > 0 { share } else { f64::NAN });
    evacuate(effort.evacuations, samples);
    report.ratio(DEFAULT, of_default(effort.reserve, samples).unwrap_or(f64::NAN));
}

struct Tries<'a> {
    effort: &'a Effort,
    samples: &'a mut Samples,
    /// Tries in which the reader saw twice the run, and which of them succeeded.
    seen: u64,
    had: u64,
}

impl Tries<'_> {
    fn ask(&mut self, who: &'static str) {
        let run = self.effort.run;
        let case = format!("required_{}", name(run));
        for _ in 0..self.effort.tries {
            interrupt::check();
            let twice = Bytes::new(2 * run.get());
            let is_seen = frames::longest_free_run().is_ok_and(|longest| longest >= twice);
            let cache = frames::page_cache();
            let watch = Stopwatch::start();
            let contig = Contig::options().require_run(run).map(run);
            let took = watch.elapsed().wall_us;
            self.samples.add(LOST, who, "MiB", mib(cache.saturating_sub(frames::page_cache())));
            self.seen += u64::from(is_seen);
            self.had += u64::from(is_seen && contig.is_ok());
            match contig {
                Ok(contig) => {
                    self.samples.add(&case, who, "us", took);
                    let watch = Stopwatch::start();
                    drop(contig);
                    let took = watch.elapsed().wall_us;
                    self.samples.add(GIVEN_BACK, who, "ms", took / 1e3);
                }
                Err(why) => {
                    self.samples.note(&case, who, "us", &format!("not every time: {why}"));
                    self.samples.note(GIVEN_BACK, who, "ms", "not every time was there a run");
                }
            }
        }
    }

    fn ask_peers(&mut self) {
        let run = self.effort.run;
        let case = format!("required_{}", name(run));
        for _ in 0..self.effort.tries {
            for peer in [Peer::SurplusHugetlb, Peer::Thp] {
                interrupt::check();
                let watch = Stopwatch::start();
                let got = of_peer(peer, run);
                let took = watch.elapsed().wall_us;
                match got {
                    Ok(()) => self.samples.add(&case, peer.name(), "us", took),
                    Err(why) => {
                        let why = format!("not every time: {why}");
                        self.samples.note(&case, peer.name(), "us", &why);
                    }
                }
            }
        }
    }
}

fn of_peer(peer: Peer, run: Bytes) -> Result<(), String> {
    let pages = run.pages_up(page_size());
    let block = peer.alloc(pages).map_err(|why| why.to_string())?;
    match block.longest_run() {
        Some(seen) if seen < pages => Err(format!("longest run {}", seen.bytes(page_size()))),
        _ => Ok(()),
    }
}

/// The longest run of a default reserve of `len`, over the lesser of `len` and what the reader saw.
fn of_default(len: Bytes, samples: &mut Samples) -> Option<f64> {
    let best = frames::longest_free_run().ok()?.min(len);
    let watch = Stopwatch::start();
    let reserve = Reserve::builder().map(len);
    let took = watch.elapsed().wall_us;
    let (case, who) = (format!("default_reserve_{}", name(len)), "glebe");
    let reserve = match reserve {
        Ok(reserve) => reserve,
        Err(why) => {
            samples.note(&case, who, "us", &why.to_string());
            return Some(0.0);
        }
    };
    samples.add(&case, who, "us", took);
    let contig = reserve.contig();
    let run = longest_run(contig.mapping().addr(), contig.len().pages_up(page_size()))?;
    let run = run.bytes(page_size());
    samples.note(&case, who, "us", &format!("longest run {run}; free was one of {best} or more"));
    (best > Bytes::ZERO).then(|| run.get() as f64 / best.get() as f64)
}

/// Runs of 128 MiB out of memory blocks, zeroing included.
fn evacuate(times: u64, samples: &mut Samples) {
    if times == 0 {
        return samples.note(EVACUATE, BLOCKS, "us", "not in a quick run");
    }
    for _ in 0..times {
        interrupt::check();
        let watch = Stopwatch::start();
        let contig = Contig::options().source(Source::Blocks).map(Bytes::mib(128));
        let took = watch.elapsed().wall_us;
        match contig {
            Ok(contig) => {
                samples.add(EVACUATE, BLOCKS, "us", took);
                let watch = Stopwatch::start();
                drop(contig);
                samples.add(GIVEN_BACK, BLOCKS, "ms", watch.elapsed().wall_us / 1e3);
            }
            Err(why) => samples.note(EVACUATE, BLOCKS, "us", &format!("not every time: {why}")),
        }
    }
}

fn mib(bytes: Bytes) -> f64 {
    bytes.get() as f64 / (1 << 20) as f64
}
