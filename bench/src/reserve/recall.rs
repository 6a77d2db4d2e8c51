//! The time to get a block, by size, under a load: of a full reserve and of an idle one, with
//! contents unspecified and zeroed, with the kernel's ways in between; and without a load.
//!
//! One request every [`EVERY`], the reserve's and a peer's alike: whoever asks has slept before.
//! The blocks of a round are held to its end and the cache filled again then, so that what is asked
//! for is lent: the rows `lent` say how much of it was. Tenant pages are page cache, which is
//! clean. Every size and contestant comes in turn, round after round.
//!
//! One base page is contiguous wherever it comes from, so that the best peer for it is usually a
//! plain one, which may be moved. A zeroed block stands beside a bare memset of a block of the
//! same reserve and size, which was asked for unspecified: that is what a caller would do alone.

use std::time::Duration;

use glebe::reserve::{Request, Reserve};
use glebe::units::Pages;

use super::requests::{ask, Faults, Held, EVERY};
use super::tenant::Tenant;
use super::{GLEBE, LARGEST, REQUEST_PAGES};
use crate::clock;
use crate::peers::{self, Peer, PeerSample, StandingPool};
use crate::report::Report;
use crate::samples::{rounds, Samples};
use crate::summary::Summary;

/// Every so many rounds of a full reserve, zeroed blocks too.
const ZEROED_EVERY: u64 = 8;
const LOOKED_AT: u64 = 64;
const RECALL: &str = "recall";
const ALONE: &str = "recall_alone";
/// The largest blocks of as many rounds as the kernel is asked in: the more are made the slower is
/// the slowest.
const BESIDE_KERNEL: &str = "recall_beside_kernel";
const MEMSET: &str = "memset";
const CPU: &str = "us cpu";

/// A page that is given back is the next to be had, and not lent yet: blocks of one page are held
/// until there are so many, so that what is timed takes a lent page from a tenant.
const SINGLES_MAX: usize = 200;

/// Rounds, and how long they may take on a busy machine.
type Plan = (u64, Duration);
const FULL: [Plan; 2] = [(1000, Duration::from_secs(360)), (16, Duration::from_secs(10))];
const IDLE: [Plan; 2] = [(100, Duration::from_secs(30)), (3, Duration::from_secs(2))];
const NO_LOAD: [Plan; 2] = [(1000, Duration::from_secs(150)), (16, Duration::from_secs(5))];
/// Every so many full rounds the kernel is asked for all sizes: it takes its time. For one page it
/// is asked in each.
const PEERS_EVERY: [u64; 2] = [16, 8];

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
    table: Samples,
    faults: Faults,
    held: Vec<Held>,
    held_pages: u64,
    /// Blocks of one page, held longer: see [`SINGLES_MAX`].
    singles: Vec<Held>,
    /// Whether the cache is filled.
    lends: bool,
    /// Whether the kernel is asked for all sizes in this round.
    asks_kernel: bool,
}

/// The name of a case of one size.
fn name(what: &str, pages: u64) -> String {
    format!("{what}_{pages}")
}

/// Measures and reports; the reserve is full of cache at the end.
pub(super) fn measure(reserve: &Reserve, tenant: &mut Tenant, quick: bool, report: &mut Report) {
    let nth = usize::from(quick);
    let longest = reserve.contig().longest_run().get();
    let sizes = || REQUEST_PAGES.into_iter().filter(|&pages| pages <= longest);
    let standing = StandingPool::new(Pages::new(LARGEST));
    let mut bench = Bench::new(reserve, tenant, false);
    let Ok(_) = rounds("recall of an idle reserve", IDLE[nth], |_| {
        sizes().for_each(|pages| bench.own("recall_idle", pages, Contents::Unspecified));
        bench.release();
        Ok::<_, std::convert::Infallible>(())
    });
    bench.lends = true;
    bench.fill();
    let Ok(_) = rounds("recall", FULL[nth], |round| {
        bench.asks_kernel = round % PEERS_EVERY[nth] == 0;
        for pages in sizes() {
            bench.own(RECALL, pages, Contents::Unspecified);
            if round % ZEROED_EVERY == 0 {
                bench.own(RECALL, pages, Contents::Zeroed);
                bench.own(RECALL, pages, Contents::Memset);
            }
        }
        bench.release();
        bench.peers(standing.as_ref().ok());
        Ok::<_, std::convert::Infallible>(())
    });
    bench.give_all_back();
    for pages in REQUEST_PAGES.into_iter().filter(|&pages| pages > longest) {
        let why = format!("the longest run is {longest} pages; get larger huge pages");
        bench.table.note(&name(RECALL, pages), GLEBE, "us", &why);
    }
    bench.table.report(report);
    ratios(&bench.table, report);
    bench.faults.report(report);
    match &standing {
        Ok(pool) => {
            report.row("idle", StandingPool::NAME, "bytes", &[pool.idle().get() as f64]);
            report.remark("set aside beforehand and used by nobody: no peer on demand");
        }
        Err(e) => report.absent("idle", StandingPool::NAME, "bytes", &e.to_string()),
    }
}

/// Measures and reports blocks of one page and of the largest size, of a full reserve and with
/// nothing beside.
pub(super) fn measure_alone(
    reserve: &Reserve,
    tenant: &mut Tenant,
    quick: bool,
    report: &mut Report,
) {
    let mut bench = Bench::new(reserve, tenant, true);
    let large = LARGEST.min(reserve.contig().longest_run().get());
    bench.fill();
    let Ok(_) = rounds("recall, no load", NO_LOAD[usize::from(quick)], |_| {
        for pages in [1, large] {
            bench.own(ALONE, pages, Contents::Unspecified);
            bench.release();
        }
        Ok::<_, std::convert::Infallible>(())
    });
    bench.give_all_back();
    bench.table.report(report);
    bench.faults.report(report);
}

impl<'a> Bench<'a> {
    fn new(reserve: &'a Reserve, tenant: &'a mut Tenant, lends: bool) -> Self {
        let (table, faults) = <(Samples, Faults)>::default();
        let (held, singles) = <(Vec<Held>, Vec<Held>)>::default();
        Self {
            reserve,
            tenant,
            table,
            faults,
            held,
            held_pages: 0,
            singles,
            lends,
            asks_kernel: false,
        }
    }

    fn own(&mut self, what: &str, pages: u64, contents: Contents) {
        if self.held_pages + pages > self.reserve.len().get() / 2 {
            self.release();
        }
        let due = clock::wall() + EVERY;
        self.tenant.look(LOOKED_AT, self.reserve.len().get());
        let zeroed = contents == Contents::Zeroed;
        let case = name(if zeroed { "zeroed" } else { what }, pages);
        let request = Request::new(Pages::new(pages));
        let request = if zeroed { request.zeroed() } else { request };
        let mut asked = ask(self.reserve, due.saturating_sub(clock::wall()), request, zeroed);
        if asked.is_err() && !(self.held.is_empty() && self.singles.is_empty()) {
            // Of a reserve in pieces what is held here may lie in all runs that are long enough.
            self.give_all_back();
            asked = ask(self.reserve, EVERY, request, zeroed);
        }
        let mut held = match asked {
            Ok(held) => held,
            Err(e) => {
                self.faults.failures += 1;
                return self.table.outcome(&case, GLEBE, "us", Err(e.to_string()));
            }
        };
        match contents {
            Contents::Memset => match held.memset() {
                Ok(took) => self.time(&name("zeroed", pages), MEMSET, took.wall_us, took.cpu_us),
                Err(_) => self.faults.failures += 1,
            },
            Contents::Zeroed => {
                self.time(&case, GLEBE, held.elapsed.wall_us, held.elapsed.cpu_us);
            }
            Contents::Unspecified => {
                self.table.add(&case, GLEBE, "us", held.elapsed.wall_us);
                if what == RECALL {
                    self.table.add(&name("lent", pages), GLEBE, "pages", held.recalled as f64);
                    self.run(pages, GLEBE, held.longest_run);
                }
                if self.asks_kernel && pages == LARGEST {
                    let case = name(BESIDE_KERNEL, pages);
                    self.table.add(&case, GLEBE, "us", held.elapsed.wall_us);
                }
            }
        }
        self.faults.add(held.over_recall());
        self.faults.add(held.mark());
        if pages == 1 {
            self.singles.push(held);
        } else {
            self.held_pages += pages;
            self.held.push(held);
        }
        if self.lends {
            self.tenant.put_new(LOOKED_AT);
        }
        self.tenant.look(LOOKED_AT, self.reserve.len().get());
    }

    fn time(&mut self, case: &str, who: &str, wall_us: f64, cpu_us: f64) {
        self.table.add(case, who, "us", wall_us);
        self.table.add(case, who, CPU, cpu_us);
    }

    /// The longest physical run of a block, where frames can be read.
    fn run(&mut self, pages: u64, who: &str, run: Option<Pages>) {
        if let Some(run) = run {
            self.table.add(&name("longest_run", pages), who, "pages", run.get() as f64);
        }
    }

    /// Looks at all blocks again, gives them back and fills the cache.
    fn release(&mut self) {
        self.held.drain(..).for_each(|held| self.faults.add(held.check()));
        self.held_pages = 0;
        if self.singles.len() >= SINGLES_MAX {
            self.release_singles();
        }
        self.fill();
    }

    fn release_singles(&mut self) {
        self.singles.drain(..).for_each(|held| self.faults.add(held.check()));
        // Who asks for this makes that pages at hand are lent again too.
        self.faults.failures += u64::from(self.reserve.largest_run().is_err());
    }

    fn give_all_back(&mut self) {
        self.release_singles();
        self.release();
    }

    fn fill(&mut self) {
        if self.lends {
            self.tenant.refill(self.reserve);
        }
    }

    fn peers(&mut self, standing: Option<&StandingPool>) {
        let sizes = if self.asks_kernel { &REQUEST_PAGES[..] } else { &REQUEST_PAGES[..1] };
        for &pages in sizes {
            let count = Pages::new(pages);
            let mut add = |who: &str, measure: &dyn Fn() -> PeerSample| {
                std::thread::sleep(EVERY);
                let sample = measure();
                self.run(pages, who, sample.longest_run);
                let sample = sample.failed.map_or(Ok(sample.wall_us), Err);
                self.table.outcome(&name(RECALL, pages), who, "us", sample);
            };
            for peer in Peer::ALL {
                add(peer.name(), &|| peers::measure(peer, count));
            }
            if let Some(pool) = standing {
                add(StandingPool::NAME, &|| pool.measure(count));
            }
        }
    }
}

/// A figure that could not be had is null: the name is there either way.
fn ratios(table: &Samples, report: &mut Report) {
    let kernel = |pages, figure: fn(&Summary) -> f64| {
        let case = name(RECALL, pages);
        let peers = Peer::ALL.map(|peer| table.figure((&case, peer.name(), "us"), figure));
        peers.into_iter().fold(f64::NAN, f64::min)
    };
    let own = |what, pages, figure| table.figure((&name(what, pages), GLEBE, "us"), figure);
    let max = |summary: &Summary| summary.max;
    let best = kernel(LARGEST, max);
    let beside = best / own(BESIDE_KERNEL, LARGEST, max);
    report.ratio(&format!("max_{LARGEST}_vs_best_kernel"), beside);
    let p99 = |summary: &Summary| summary.p99;
    report.ratio("p99_1_vs_best_kernel", kernel(1, p99) / own(RECALL, 1, p99));
    // By CPU time: of two pieces of work as long as a time slice the wall time tells which of
    // them the load interrupted.
    let zeroed = |who| table.figure((&name("zeroed", LARGEST), who, CPU), |s| s.median);
    report.ratio(&format!("zeroed_{LARGEST}_vs_memset"), zeroed(MEMSET) / zeroed(GLEBE));
}
