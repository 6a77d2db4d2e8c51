//! Runs that are required of a machine whose memory a program has fragmented: of the pool that was
//! set aside before, and on demand, while that program holds its memory and after it has ended; a
//! reserve as it is by default; and a run out of evacuated memory blocks.
//!
//! Before each try on demand a reader of page frames that shares no code with the library looks for
//! the longest free run ([`frames`]): a try in which it saw twice the run should succeed. Units:
//! microseconds to have a run, milliseconds to give it back, MiB.

use glebe::contig::{Contig, Source, StandingPool};
use glebe::reserve::Reserve;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::fragment::Fragmenter;
use super::standing::run_len;
use super::{name, Error};
use crate::clock::Stopwatch;
use crate::frames::{longest_free_run, longest_run, page_cache};
use crate::interrupt;
use crate::peers::Peer;
use crate::report::Report;
use crate::samples::Samples;

/// The share of tries that succeeded, of those that should.
const SHARE: &str = "required_on_demand";
/// The longest run of a default reserve over the best that the reader saw.
const DEFAULT: &str = "default_run_vs_longest";
const FAILURES: &str = "required_failures";
const LOST: &str = "page_cache_lost";
const GIVEN_BACK: &str = "given_back_ms";
const EVACUATE: &str = "evacuate_128m";
const BLOCKS: &str = "blocks";
/// Of the pool.
const TRIES: u64 = 20;

struct Tries {
    run: Bytes,
    case: String,
    /// On demand: each may make the kernel compact for seconds.
    times: u64,
    samples: Samples,
    /// Tries in which the reader saw twice the run, and which of them succeeded.
    seen: u64,
    had: u64,
}

/// Measures and reports. Out of memory blocks, which are the machine's, nothing in a quick run.
pub(super) fn measure(
    quick: bool,
    pool: Result<StandingPool, String>,
    report: &mut Report,
) -> Result<(), Error> {
    let (fragmented, reserve) = match quick {
        true => (Bytes::mib(128), Bytes::mib(64)),
        false => (Bytes::new(u64::MAX), Bytes::gib(1)),
    };
    let (run, times) = (run_len(quick), if quick { 1 } else { 10 });
    let case = format!("required_{}", name(run));
    let mut tries = Tries { run, case, times, samples: Samples::default(), seen: 0, had: 0 };
    let fragmenter = Fragmenter::start(fragmented)?;
    report.note(&format!(
        "Runs were required while {} were held in single base pages, as many free between them.",
        fragmenter.held
    ));
    match pool.and_then(|pool| tries.of_pool(&pool)) {
        Ok(failures) => report.check(FAILURES, failures),
        Err(why) => {
            tries.samples.outcome(&tries.case, "glebe_pool", "us", Err(&why));
            report.unmeasured(FAILURES, &why);
        }
    }
    tries.ask("glebe_on_demand");
    tries.ask_peers();
    drop(fragmenter);
    tries.ask("glebe_after_it_ended");
    let Tries { mut samples, seen, had, .. } = tries;
    report.note(&format!(
        "Of {seen} runs required on demand while a free run of twice the length was there, {had} \
         were had; where frames are hidden nobody can tell."
    ));
    // Without one that was seen no number.
    report.ratio(SHARE, had as f64 / seen as f64);
    if quick {
        samples.note(EVACUATE, BLOCKS, "us", "not in a quick run");
    } else {
        evacuate(&mut samples);
    }
    report.ratio(DEFAULT, of_default(reserve, &mut samples).unwrap_or(f64::NAN));
    samples.report(report);
    Ok(())
}

impl Tries {
    /// Requires the run of the pool; how often there was none.
    fn of_pool(&mut self, pool: &StandingPool) -> Result<u64, String> {
        let longest = pool.largest_free_run().map_err(|why| why.to_string())?;
        if longest < self.run.pages_up(page_size()) {
            return Err(format!("the machine had no run of {} beforehand", self.run));
        }
        let mut failures = 0;
        for _ in 0..TRIES {
            match required(pool, self.run) {
                Some(took_us) => self.samples.add(&self.case, "glebe_pool", "us", took_us),
                None => failures += 1,
            }
        }
        Ok(failures)
    }

    fn ask(&mut self, who: &'static str) {
        for _ in 0..self.times {
            interrupt::check();
            let twice = Bytes::new(2 * self.run.get());
            let is_seen = longest_free_run().is_ok_and(|longest| longest >= twice);
            let cache = page_cache();
            let watch = Stopwatch::start();
            let contig = Contig::options().require_run(self.run).build(self.run);
            let took = watch.elapsed().wall_us;
            self.samples.add(LOST, who, "MiB", mib(cache.saturating_sub(page_cache())));
            self.seen += u64::from(is_seen);
            self.had += u64::from(is_seen && contig.is_ok());
            self.samples.outcome(&self.case, who, "us", contig.as_ref().map(|_| took));
            give_back(contig.ok(), who, &mut self.samples);
        }
    }

    fn ask_peers(&mut self) {
        for _ in 0..self.times {
            for peer in [Peer::SurplusHugetlb, Peer::Thp] {
                interrupt::check();
                let pages = self.run.pages_up(page_size());
                let watch = Stopwatch::start();
                let block = peer.alloc(pages);
                let took = watch.elapsed().wall_us;
                let took = match block.map(|(block, _)| block.longest_run()) {
                    Ok(Some(seen)) if seen < pages => {
                        Err(format!("longest run {}", seen.bytes(page_size())))
                    }
                    Ok(_) => Ok(took),
                    Err(why) => Err(why.to_string()),
                };
                self.samples.outcome(&self.case, peer.name(), "us", took);
            }
        }
    }
}

/// A run of the pool that page frames show to be one; how long it took.
fn required(pool: &StandingPool, run: Bytes) -> Option<f64> {
    interrupt::check();
    let pages = run.pages_up(page_size());
    let watch = Stopwatch::start();
    let piece = pool.take(run).ok()?;
    let took = watch.elapsed().wall_us;
    // Where frames are hidden the pool's word stands.
    longest_run(piece.addr(), pages).is_none_or(|seen| seen == pages).then_some(took)
}

fn give_back(contig: Option<Contig>, who: &'static str, samples: &mut Samples) {
    let watch = Stopwatch::start();
    let took = contig.map(|contig| {
        drop(contig);
        watch.elapsed().wall_us / 1e3
    });
    samples.outcome(GIVEN_BACK, who, "ms", took.ok_or("there was no run"));
}

/// The longest run of a default reserve of `len`, over the lesser of `len` and what the reader saw.
fn of_default(len: Bytes, samples: &mut Samples) -> Option<f64> {
    let best = longest_free_run().ok()?.min(len);
    let watch = Stopwatch::start();
    let reserve = Reserve::new(len);
    let took = watch.elapsed().wall_us;
    let (case, who) = (format!("default_reserve_{}", name(len)), "glebe");
    samples.outcome(&case, who, "us", reserve.as_ref().map(|_| took));
    let Ok(reserve) = reserve else { return Some(0.0) };
    let contig = reserve.contig();
    let run = longest_run(contig.mapping().addr(), contig.len().pages_up(page_size()))?;
    let run = run.bytes(page_size());
    samples.note(&case, who, "us", &format!("longest run {run}; free was one of {best} or more"));
    (best > Bytes::ZERO).then(|| run.get() as f64 / best.get() as f64)
}

/// Runs of 128 MiB out of memory blocks, zeroing included.
fn evacuate(samples: &mut Samples) {
    for _ in 0..10 {
        interrupt::check();
        let watch = Stopwatch::start();
        let contig = Contig::options().source(Source::Blocks).build(Bytes::mib(128));
        let took = watch.elapsed().wall_us;
        samples.outcome(EVACUATE, BLOCKS, "us", contig.as_ref().map(|_| took));
        give_back(contig.ok(), BLOCKS, samples);
    }
}

fn mib(bytes: Bytes) -> f64 {
    bytes.get() as f64 / (1 << 20) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_the_pool_is_one_or_none_is_said_to_be() {
        let pool = match StandingPool::new(Bytes::mib(8)) {
            Ok(pool) => pool,
            Err(why) => return println!("skipped: {why}"),
        };
        let run = pool.largest_free_run().unwrap().bytes(page_size());
        assert!(required(&pool, run).is_some());
        assert!(required(&pool, Bytes::gib(1)).is_none());
    }
}
