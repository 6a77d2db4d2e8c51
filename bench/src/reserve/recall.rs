//! The time to get a block, by size, under a load: of a full reserve, a half full and an idle one,
//! with contents unspecified and zeroed, with the kernel's ways in between.
//!
//! One request every [`EVERY`], the reserve's and a peer's alike: whoever asks has slept before.
//! The blocks of a round are held to its end and the cache filled again then, so that what is asked
//! for is lent: the rows say how much of it was. Tenant pages are page cache, which is clean. Every
//! size and contestant comes in turn, round after round.
//!
//! One base page is contiguous wherever it comes from, so that the best peer for it is usually a
//! plain one, which may be moved; the ratio of the 99th percentile is given against the best and
//! against each peer.
//!
//! A zeroed block stands beside a bare memset of a block of the same reserve and size, which was
//! asked for unspecified: that is what a caller would do alone.

use std::time::Duration;

use glebe::mapping::{Mapping, Visibility};
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults, Held, Marking, EVERY};
use super::samples::{case, Samples, GLEBE, RECALL};
use super::tenant::Tenant;
use super::{table, REQUEST_PAGES};
use crate::clock::{self, Stopwatch};
use crate::peers::{self, Peer, StandingPool};
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

/// Every so many rounds of a full reserve, zeroed blocks too.
const ZEROED_EVERY: u64 = 8;
const LOOKED_AT: u64 = 64;
const LARGEST: u64 = REQUEST_PAGES[REQUEST_PAGES.len() - 1];
const MEMSET: &str = "memset";

/// How much of the reserve is lent when a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    None,
    Half,
    All,
    /// All, and no load beside.
    AllAlone,
}

/// A page that is given back is the next to be had, and not lent yet: blocks of one page are held
/// until there are so many, so that what is timed takes a lent page from a tenant.
const SINGLES_MAX: usize = 200;

/// Rounds without a load.
const ALONE: u64 = 1000;
const ALONE_QUICK: u64 = 16;
const ALONE_AT_MOST: Duration = Duration::from_secs(150);

/// How many requests are made.
struct Rounds {
    full: u64,
    /// Of a reserve that is idle or half full.
    other: u64,
    /// On a machine so busy that the rounds take longer than this they end sooner.
    full_at_most: Duration,
    other_at_most: Duration,
    /// Every so many full rounds the kernel is asked for all sizes: it takes its time. For one
    /// page it is asked in each.
    peers_every: u64,
}

const ROUNDS: Rounds = Rounds {
    full: 1000,
    other: 100,
    full_at_most: Duration::from_secs(360),
    other_at_most: Duration::from_secs(30),
    peers_every: 16,
};
const ROUNDS_QUICK: Rounds = Rounds {
    full: 16,
    other: 3,
    full_at_most: Duration::from_secs(15),
    other_at_most: Duration::from_secs(2),
    peers_every: 8,
};

/// What is done with a block that was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Unspecified,
    Zeroed,
    /// Unspecified, then zeroed by the caller, which alone is timed.
    Memset,
}

struct Bench<'a> {
    reserve: &'a Reserve,
    tenant: &'a mut Tenant,
    samples: Samples,
    faults: Faults,
    held: Vec<Held>,
    held_pages: u64,
    /// How long the largest blocks took in the rounds in which the kernel was asked too.
    beside_kernel_us: Vec<f64>,
    /// Blocks of one page, held longer: see [`SINGLES_MAX`].
    singles: Vec<Held>,
    lent: Lent,
}

/// Measures and reports; the reserve is idle, and full at the end.
pub(super) fn measure(reserve: &Reserve, tenant: &mut Tenant, quick: bool, report: &mut Report) {
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let longest = reserve.contig().longest_run().get();
    let standing = StandingPool::new(Pages::new(LARGEST));
    let mut bench = Bench::new(reserve, tenant, Lent::None);
    let mut progress = Progress::new("recall", rounds.full + 2 * rounds.other);
    let mut done = 0;
    for (lent, count, at_most) in [
        (Lent::None, rounds.other, rounds.other_at_most),
        (Lent::Half, rounds.other, rounds.other_at_most),
        (Lent::All, rounds.full, rounds.full_at_most),
    ] {
        bench.lent = lent;
        bench.fill();
        let end = clock::wall() + at_most;
        for round in 0..count {
            for pages in REQUEST_PAGES.into_iter().filter(|&pages| pages <= longest) {
                bench.own(pages, Contents::Unspecified);
                if lent == Lent::All && round % rounds.peers_every == 0 && pages == LARGEST {
                    bench.beside_kernel_us.extend(bench.held.last().map(|h| h.elapsed.wall_us));
                }
                if lent == Lent::All && round % ZEROED_EVERY == 0 {
                    bench.own(pages, Contents::Zeroed);
                    bench.own(pages, Contents::Memset);
                }
            }
            bench.release();
            if lent == Lent::All {
                let all = round % rounds.peers_every == 0;
                bench.peers(all, standing.as_ref().ok());
            }
            done += 1;
            progress.update(done);
            if clock::wall() > end && round + 1 < count {
                let (case, made) = (lent.case(), round + 1);
                report.note(&format!("{case}: a busy machine, {made} rounds instead of {count}"));
                done += count - made;
                break;
            }
        }
    }
    progress.finish();
    bench.release_held();
    bench.release_singles();
    bench.report(longest, report);
    match &standing {
        Ok(pool) => {
            let idle = pool.idle().get() as f64;
            report.row("idle", StandingPool::NAME, "bytes", &[idle]);
            report.remark("set aside beforehand and used by nobody: no peer on demand");
        }
        Err(e) => report.absent("idle", StandingPool::NAME, "bytes", &e.to_string()),
    }
}

impl Lent {
    fn case(self) -> &'static str {
        match self {
            Self::None => "recall_idle",
            Self::Half => "recall_half",
            Self::All => RECALL,
            Self::AllAlone => "recall_alone",
        }
    }
}

/// Measures and reports blocks of one page and of the largest size, of a full reserve and with
/// nothing beside; and one read of a word in a huge page of its own, which is what this machine
/// takes for the first miss after a sleep.
pub(super) fn measure_alone(
    reserve: &Reserve,
    tenant: &mut Tenant,
    quick: bool,
    report: &mut Report,
) {
    let mut bench = Bench::new(reserve, tenant, Lent::AllAlone);
    let sizes = [1, LARGEST.min(reserve.contig().longest_run().get())];
    let rounds = if quick { ALONE_QUICK } else { ALONE };
    let end = clock::wall() + ALONE_AT_MOST;
    let mut progress = Progress::new("recall, no load", rounds * sizes.len() as u64);
    let word = Mapping::anonymous(Bytes::mib(2), Visibility::ORDINARY);
    let mut first_miss = Vec::new();
    bench.fill();
    for (done, pages) in (0..).zip(sizes) {
        for round in 0..rounds {
            bench.own(pages, Contents::Unspecified);
            bench.release();
            if let (Ok(word), 1) = (&word, pages) {
                std::thread::sleep(EVERY);
                let stopwatch = Stopwatch::start();
                word.read(Bytes::ZERO, &mut [0; size_of::<u64>()]);
                first_miss.push(stopwatch.elapsed().wall_us);
            }
            progress.update(done * rounds + round + 1);
            if clock::wall() > end {
                break;
            }
        }
    }
    progress.finish();
    bench.release_held();
    bench.release_singles();
    for pages in sizes {
        bench.samples.report(Lent::AllAlone.case(), pages, GLEBE, report);
    }
    report.row("first_miss", "machine", "us", &first_miss);
    report.remark("a word of a huge page, read after a sleep: part of every row of `recall_alone`");
    bench.report_faults(report);
}

impl<'a> Bench<'a> {
    fn new(reserve: &'a Reserve, tenant: &'a mut Tenant, lent: Lent) -> Self {
        let (samples, faults) = <(Samples, Faults)>::default();
        Self {
            reserve,
            tenant,
            samples,
            faults,
            held: Vec::new(),
            held_pages: 0,
            beside_kernel_us: Vec::new(),
            singles: Vec::new(),
            lent,
        }
    }

    fn own(&mut self, pages: u64, contents: Contents) {
        if self.held_pages + pages > self.reserve.len().get() / 2 {
            self.release();
        }
        let due = clock::wall() + EVERY;
        self.tenant.look(LOOKED_AT, self.reserve.len().get());
        let pause = due.saturating_sub(clock::wall());
        let zeroed = contents == Contents::Zeroed;
        let what = if zeroed { "zeroed" } else { self.lent.case() };
        let request = Request::new(Pages::new(pages));
        let request = if zeroed { request.zeroed() } else { request };
        let mut asked = ask(self.reserve, pause, request, zeroed);
        if asked.is_err() && self.give_all_back() {
            // Of a reserve in pieces what is held here may lie in all runs that are long enough.
            asked = ask(self.reserve, pause, request, zeroed);
        }
        let mut held = match asked {
            Ok(held) => held,
            Err(e) => {
                self.faults.failures += 1;
                return self.samples.failed(what, pages, GLEBE, e.to_string());
            }
        };
        if contents == Contents::Memset {
            match held.memset() {
                Ok(us) => self.samples.time("zeroed", pages, MEMSET, (us.wall_us, us.cpu_us)),
                Err(_) => self.faults.failures += 1,
            }
        } else {
            self.samples.own(what, pages, &held);
        }
        self.faults.add(held.over_recall());
        self.faults.add(held.mark(Marking::Pages));
        if pages == 1 {
            self.singles.push(held);
        } else {
            self.held_pages += pages;
            self.held.push(held);
        }
        if self.lent != Lent::None {
            self.tenant.put_new(LOOKED_AT);
        }
        self.tenant.look(LOOKED_AT, self.reserve.len().get());
    }

    /// Looks at all blocks again, gives them back and fills the cache.
    fn release(&mut self) {
        self.release_held();
        if self.singles.len() >= SINGLES_MAX {
            self.release_singles();
        }
        self.fill();
    }

    /// Gives every block back and fills the cache; false if there is none.
    fn give_all_back(&mut self) -> bool {
        let is_any = !self.held.is_empty() || !self.singles.is_empty();
        if is_any {
            self.release_held();
            self.release_singles();
            self.fill();
        }
        is_any
    }

    fn release_held(&mut self) {
        for held in self.held.drain(..) {
            self.faults.add(held.check(Marking::Pages));
        }
        self.held_pages = 0;
    }

    fn release_singles(&mut self) {
        for held in self.singles.drain(..) {
            self.faults.add(held.check(Marking::Pages));
        }
        // Who asks for this makes that pages at hand are lent again too.
        self.faults.failures += u64::from(self.reserve.largest_run().is_err());
    }

    fn fill(&mut self) {
        match self.lent {
            Lent::None => {}
            Lent::Half => self.tenant.refill_to(self.reserve, self.reserve.len().get() / 2),
            Lent::All | Lent::AllAlone => self.tenant.refill(self.reserve),
        }
    }

    fn peers(&mut self, all: bool, standing: Option<&StandingPool>) {
        let sizes = if all { &REQUEST_PAGES[..] } else { &REQUEST_PAGES[..1] };
        for &pages in sizes {
            let count = Pages::new(pages);
            for peer in Peer::ALL {
                std::thread::sleep(EVERY);
                let sample = peers::measure(peer, count);
                self.samples.peer(RECALL, pages, peer.name(), sample);
            }
            if let Some(pool) = standing {
                std::thread::sleep(EVERY);
                self.samples.peer(RECALL, pages, StandingPool::NAME, pool.measure(count));
            }
        }
    }

    fn report(&self, longest: u64, report: &mut Report) {
        let kernel = Peer::ALL.map(Peer::name).into_iter().chain([StandingPool::NAME]);
        let mut lines = Vec::new();
        for pages in REQUEST_PAGES {
            for what in ["recall_idle", "recall_half", RECALL] {
                self.samples.report(what, pages, GLEBE, report);
            }
            for who in kernel.clone() {
                self.samples.report(RECALL, pages, who, report);
            }
            self.samples.report("zeroed", pages, GLEBE, report);
            self.samples.report("zeroed", pages, MEMSET, report);
            if pages > longest {
                let why = format!("the longest run is {longest} pages; get larger huge pages");
                report.absent(&case(RECALL, pages), GLEBE, "us", &why);
            }
            let of = |who| self.samples.line(RECALL, pages, who);
            lines.extend([GLEBE].into_iter().chain(kernel.clone()).filter_map(of));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = table::write(&lines, &mut text);
        report.section("Time to get pages, reserve full, under load, one request in 10 ms", &text);
        self.ratios(report);
        self.report_faults(report);
    }

    fn report_faults(&self, report: &mut Report) {
        report.check("failures", self.faults.failures);
        report.check("stray_writes", self.faults.stray_writes);
        report.check("over_recall", self.faults.over_recall);
        report.check("not_contiguous", self.faults.not_contiguous);
        report.check("wrong_bytes", self.faults.not_zero);
    }

    /// A figure that could not be had is null: the name is there either way.
    fn ratios(&self, report: &mut Report) {
        let of = |what, pages, who, of: fn(&Summary) -> f64| {
            self.samples.wall(what, pages, who).as_ref().map_or(f64::NAN, of)
        };
        let best = |pages, figure: fn(&Summary) -> f64| {
            let kernel = Peer::ALL.map(|peer| of(RECALL, pages, peer.name(), figure));
            kernel.into_iter().fold(f64::NAN, f64::min) / of(RECALL, pages, GLEBE, figure)
        };
        // Of as many requests of each: the more are made the slower is the slowest.
        let slowest = self.beside_kernel_us.iter().copied().fold(f64::NAN, f64::max);
        let kernel = Peer::ALL.map(|peer| of(RECALL, LARGEST, peer.name(), |s| s.max));
        let kernel = kernel.into_iter().fold(f64::NAN, f64::min);
        report.ratio(&format!("max_{LARGEST}_vs_best_kernel"), kernel / slowest);
        // Of all of glebe's requests, against the fewer ones made of the kernel.
        report.ratio(&format!("max_{LARGEST}_of_all_vs_best_kernel"), best(LARGEST, |s| s.max));
        report.ratio("p99_1_vs_best_kernel", best(1, |s| s.p99));
        for peer in Peer::ALL.map(Peer::name) {
            let ratio = of(RECALL, 1, peer, |s| s.p99) / of(RECALL, 1, GLEBE, |s| s.p99);
            report.ratio(&format!("p99_1_vs_{peer}"), ratio);
        }
        // By CPU time: of two pieces of work as long as a time slice the wall time tells which of
        // them the load interrupted.
        let cpu = |who| {
            let summary = self.samples.cpu("zeroed", LARGEST, who);
            summary.map_or(f64::NAN, |s| s.median)
        };
        report.ratio(&format!("zeroed_{LARGEST}_vs_memset"), cpu(MEMSET) / cpu(GLEBE));
    }
}
