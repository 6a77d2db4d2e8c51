//! [`measure`] times requests for blocks under load, by size: to an idle and to a full reserve, for
//! unspecified or zeroed bytes, and to the kernel.
//!
//! Each request follows a pause of [`EVERY`]. Blocks are held for a time. After their release the
//! tenant refills the reserve with clean page cache, so that requests take lent pages (rows
//! `lent`). A zeroed block is compared with an unspecified block that the caller then clears by
//! memset.

use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Held, EVERY};
use super::tenant::Tenant;
use super::{map, map_on, GLEBE, KERNEL, LARGEST, REQUEST_PAGES};
use crate::clock::{self, Elapsed};
use crate::contig::name as size_name;
use crate::memory::{HugeFile, Memory};
use crate::report::Report;
use crate::summary::Summary;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

/// Rounds between zeroed blocks of a full reserve.
const ZEROED_EVERY: u64 = 8;
const LOOKED_AT: u64 = 64;
const RECALL: &str = "recall";
/// Case of the largest blocks, only from rounds that also ask the kernel for them. glebe and the
/// kernel need equally many samples, because a maximum grows with the number of samples.
const BESIDE_KERNEL: &str = "recall_beside_kernel";
const MEMSET: &str = "memset";
const CPU: &str = "us cpu";

/// Number of held one-page blocks that are released together. After an immediate release, the next
/// timed request would take the freed page instead of a lent page.
const SINGLES_MAX: usize = 200;

/// Maximum rounds and seconds with a full reserve: of a quick run, and of a long one.
const FULL: [(u64, u64); 2] = [(8, 5), (1000, 360)];
/// As [`FULL`], with an idle reserve.
const IDLE: [(u64, u64); 2] = [(3, 2), (100, 30)];

const SMALL: Bytes = Bytes::mib(256);
const LARGE: Bytes = Bytes::gib(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Unspecified,
    Zeroed,
    /// Zeroed by the caller; only the zeroing is timed.
    Memset,
}

struct Bench<'a> {
    reserve: &'a Reserve,
    tenant: &'a mut Tenant,
    report: &'a mut Report,
    held: Vec<Held>,
    held_pages: u64,
    /// Blocks of one page, which are held longer: see [`SINGLES_MAX`].
    singles: Vec<Held>,
    lends: bool,
    /// True if this round asks the kernel for all sizes.
    asks_kernel: bool,
}

fn name(what: &str, pages: u64) -> String {
    format!("{what}_{pages}")
}

fn planned(what: &str, plans: [(u64, u64); 2], report: &Report) -> impl Iterator<Item = u64> {
    let (count, seconds) = report.plan(plans[0], plans[1]);
    rounds(what, count, Duration::from_secs(seconds))
}

/// Leaves the reserve full of cache pages.
pub(super) fn measure(reserve: &Reserve, tenant: &mut Tenant, report: &mut Report) {
    let longest = reserve.contig().longest_run().get();
    let sizes = || REQUEST_PAGES.into_iter().filter(|&pages| pages <= longest);
    let standing = HugeFile::new(Pages::new(LARGEST).bytes(page_size()));
    // Only some rounds ask the kernel for all sizes, because the kernel is slow. Other rounds ask
    // for one page.
    let kernel_every = report.plan(8, 16);
    let (held, singles) = <(Vec<Held>, Vec<Held>)>::default();
    let (lends, asks_kernel) = (false, false);
    let mut bench =
        Bench { reserve, tenant, report, held, held_pages: 0, singles, lends, asks_kernel };
    for _ in planned("recall of an idle reserve", IDLE, bench.report) {
        sizes().for_each(|pages| bench.own("recall_idle", pages, Contents::Unspecified));
        bench.release();
    }
    bench.lends = true;
    bench.release();
    for round in planned(RECALL, FULL, bench.report) {
        bench.asks_kernel = round % kernel_every == 0;
        for pages in sizes() {
            bench.own(RECALL, pages, Contents::Unspecified);
            if round % ZEROED_EVERY == 0 {
                bench.own(RECALL, pages, Contents::Zeroed);
                bench.own(RECALL, pages, Contents::Memset);
            }
        }
        bench.release();
        bench.peers(standing.as_ref().ok());
    }
    bench.give_all_back();
    for pages in REQUEST_PAGES.into_iter().filter(|&pages| pages > longest) {
        let why = format!("the longest run is {longest} pages; get larger huge pages");
        report.remark(&name(RECALL, pages), GLEBE, "us", &why);
    }
    let text = "set aside beforehand and used by nobody: no peer on demand".to_owned();
    report.remark("idle", HugeFile::NAME, "bytes", &text);
    let idle = standing.map(|file| file.len.get() as f64);
    report.outcome("idle", HugeFile::NAME, "bytes", idle);
    ratios(report);
}

impl Bench<'_> {
    fn own(&mut self, what: &str, pages: u64, contents: Contents) {
        if self.held_pages + pages > self.reserve.len().get() / 2 {
            self.release();
        }
        let due = clock::wall() + EVERY;
        self.tenant.look(LOOKED_AT, self.reserve.len().get());
        let zeroed = contents == Contents::Zeroed;
        let case = name(if zeroed { "zeroed" } else { what }, pages);
        let mut asked = ask(self.reserve, due.saturating_sub(clock::wall()), pages, zeroed);
        if asked.is_err() && !(self.held.is_empty() && self.singles.is_empty()) {
            // Held blocks may occupy all long runs of a fragmented reserve.
            self.give_all_back();
            asked = ask(self.reserve, EVERY, pages, zeroed);
        }
        let asked = asked.inspect_err(|why| {
            self.report.check("failures", 1);
            self.report.outcome(&case, GLEBE, "us", Err(why));
        });
        let Ok(mut held) = asked else { return };
        match contents {
            Contents::Memset => match held.memset() {
                Ok(took) => self.time(&name("zeroed", pages), MEMSET, took),
                Err(_) => self.report.check("failures", 1),
            },
            Contents::Zeroed => self.time(&case, GLEBE, held.took),
            Contents::Unspecified => {
                self.report.add(&case, GLEBE, "us", held.took.wall_us);
                if what == RECALL {
                    let lent = held.recalled as f64;
                    self.report.add(&name("lent", pages), GLEBE, "pages", lent);
                    self.run(pages, GLEBE, held.longest_run);
                }
                if self.asks_kernel && pages == LARGEST {
                    let case = name(BESIDE_KERNEL, pages);
                    self.report.add(&case, GLEBE, "us", held.took.wall_us);
                }
            }
        }
        held.over_recall(self.report);
        held.mark(self.report);
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

    fn time(&mut self, case: &str, who: &str, took: Elapsed) {
        self.report.add(case, who, "us", took.wall_us);
        self.report.add(case, who, CPU, took.cpu_us);
    }

    fn run(&mut self, pages: u64, who: &str, run: Option<Pages>) {
        if let Some(run) = run {
            self.report.add(&name("longest_run", pages), who, "pages", run.get() as f64);
        }
    }

    fn release(&mut self) {
        self.held.drain(..).for_each(|held| held.check(self.report));
        self.held_pages = 0;
        if self.singles.len() >= SINGLES_MAX {
            self.release_singles();
        }
        if self.lends {
            self.tenant.refill(self.reserve);
        }
    }

    fn release_singles(&mut self) {
        self.singles.drain(..).for_each(|held| held.check(self.report));
        // The reserve keeps freed pages for the next requests. `largest_run` makes these pages
        // lendable too.
        self.report.check("failures", u64::from(self.reserve.largest_run().is_err()));
    }

    fn give_all_back(&mut self) {
        self.release_singles();
        self.release();
    }

    fn peers(&mut self, standing: Option<&HugeFile>) {
        let sizes = if self.asks_kernel { &REQUEST_PAGES[..] } else { &REQUEST_PAGES[..1] };
        for &pages in sizes {
            let len = Pages::new(pages).bytes(page_size());
            let mut add = |who: &str, had: &dyn Fn() -> Outcome<Memory>| {
                std::thread::sleep(EVERY);
                let memory = had();
                self.run(pages, who, memory.as_ref().ok().and_then(Memory::longest_run));
                let took = memory.map(|memory| memory.took.wall_us);
                self.report.outcome(&name(RECALL, pages), who, "us", took);
            };
            KERNEL.into_iter().for_each(|(who, way)| add(who, &|| way.obtain(len)));
            if let Some(file) = standing {
                add(HugeFile::NAME, &|| file.window(len));
            }
        }
    }
}

fn ratios(report: &mut Report) {
    let kernel = |pages, figure: fn(&Summary) -> f64| {
        let case = name(RECALL, pages);
        let peers = KERNEL.map(|(who, _)| report.figure((&case, who, "us"), figure));
        peers.into_iter().fold(f64::NAN, f64::min)
    };
    let own = |what, pages, figure| report.figure((&name(what, pages), GLEBE, "us"), figure);
    // Compares CPU time, because a memset and a zeroed request last about a time slice, and the
    // load may interrupt one of them.
    let zeroed = |who| report.figure((&name("zeroed", LARGEST), who, CPU), |s| s.median);
    let ratios = [
        ("max_32000_vs_best_kernel", {
            kernel(LARGEST, |s| s.max) / own(BESIDE_KERNEL, LARGEST, |s: &Summary| s.max)
        }),
        ("p99_1_vs_best_kernel", kernel(1, |s| s.p99) / own(RECALL, 1, |s| s.p99)),
        ("zeroed_32000_vs_memset", zeroed(MEMSET) / zeroed(GLEBE)),
    ];
    ratios.into_iter().for_each(|(name, ratio)| report.ratio(name, ratio));
}

/// Compares recall times of a small and a large reserve, which get equal requests in turn. Both
/// reserves have runs of the requested size. A quick run has a large reserve of 1 GiB, and uses
/// transparent huge pages, because the kernel gives them faster than long runs.
pub(super) fn growth(report: &mut Report) -> Outcome {
    let ratio = |large| format!("growth_{}_to_{}", size_name(SMALL), size_name(large));
    report.ratio(&ratio(LARGE), f64::NAN); // so that the JSON always has the name
    let gib = meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3;
    let wanted = report.plan(Bytes::gib(1), LARGE);
    let large = wanted.min(Bytes::gib(gib));
    if large < wanted {
        let why = format!("no memory for {wanted}; free half as much again");
        report.remark("growth", GLEBE, "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut both = Vec::new();
    for len in [SMALL, large] {
        let reserve = match report.options.quick {
            true => map_on(Contig::options().source(Source::Thp), len)?,
            false => map(len)?,
        };
        let tenant = Tenant::new(&reserve)?;
        both.push((len, reserve, tenant));
    }
    let runs = both.iter().map(|(_, reserve, _)| reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(both[0].1.len().get() / 2);
    let pages = REQUEST_PAGES.into_iter().filter(|&pages| pages <= most).max().unwrap_or(1);
    let case = |len| format!("recall_{pages}_of_{}", size_name(len));
    for _ in rounds("growth", report.plan(15, 100), NO_END) {
        for (len, reserve, tenant) in &mut both {
            tenant.refill(reserve);
            let Ok(mut held) = ask(reserve, EVERY, pages, false) else {
                report.check("failures", 1);
                continue;
            };
            report.add(&case(*len), GLEBE, "us", held.took.wall_us);
            let source = format!("of {}", reserve.contig().source());
            report.remark(&case(*len), GLEBE, "us", &source);
            held.over_recall(report);
            held.mark(report);
            held.check(report);
        }
    }
    let [first, last] = [SMALL, large].map(|len| report.median(&case(len), GLEBE));
    report.ratio(&ratio(large), last / first);
    both.iter().for_each(|(_, _, tenant)| tenant.report(report));
    Ok(())
}
