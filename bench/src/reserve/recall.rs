//! Blocks called back from a full cache, under a load, with the kernel's ways in between.
//!
//! One request every [`EVERY`]. The blocks of a round are held to its end and the cache filled
//! again then, so that what is asked for is lent: the rows say how much of it was. Every size and
//! contestant comes in turn, round after round.

use std::collections::BTreeMap;
use std::time::Duration;

use glebe::reserve::{Request, Reserve};
use glebe::units::Pages;

use super::requests::{ask, Faults, Held, Marking};
use super::tenant::Tenant;
use super::REQUEST_PAGES;
use crate::clock;
use crate::peers::{self, Peer};
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

/// Time between requests.
const EVERY: Duration = Duration::from_millis(10);
/// Rounds of requests.
const ROUNDS: u64 = 1000;
const ROUNDS_QUICK: u64 = 40;
/// Every so many rounds the kernel is asked too: it takes its time.
const PEER_EVERY: u64 = 4;
const ZEROED_EVERY: u64 = 4;
const LOOKED_AT: u64 = 64;
const LARGEST: u64 = REQUEST_PAGES[REQUEST_PAGES.len() - 1];
/// Sizes asked of the kernel, and asked for as zero.
const COMPARED: [u64; 2] = [1, LARGEST];

/// Samples by case and contestant.
#[derive(Default)]
struct Samples {
    wall_us: BTreeMap<(String, &'static str), Vec<f64>>,
    cpu_us: BTreeMap<(String, &'static str), Vec<f64>>,
    why_none: BTreeMap<(String, &'static str), (u64, String)>,
    lent: BTreeMap<String, u64>,
    faults: Faults,
    held: Vec<Held>,
    held_pages: u64,
}

/// Measures and reports; the reserve is full of pages of `tenant`.
pub(super) fn measure(reserve: &Reserve, tenant: &mut Tenant, quick: bool, report: &mut Report) {
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let longest = reserve.contig().longest_run().get();
    let mut samples = Samples::default();
    let mut progress = Progress::new("recall", rounds);
    for round in 0..rounds {
        for pages in REQUEST_PAGES.into_iter().filter(|&pages| pages <= longest) {
            samples.own(reserve, tenant, pages, false);
            if COMPARED.contains(&pages) && round % ZEROED_EVERY == 0 {
                samples.own(reserve, tenant, pages, true);
            }
        }
        samples.release(reserve, tenant);
        for pages in COMPARED.into_iter().filter(|_| round % PEER_EVERY == 0) {
            for peer in Peer::ALL {
                samples.peer(peer, pages);
            }
        }
        progress.update(round + 1);
    }
    progress.finish();
    samples.report(longest, report);
}

impl Samples {
    fn own(&mut self, reserve: &Reserve, tenant: &mut Tenant, pages: u64, zeroed: bool) {
        if self.held_pages + pages > reserve.len().get() / 2 {
            self.release(reserve, tenant);
        }
        let due = clock::wall() + EVERY;
        tenant.look(LOOKED_AT, reserve.len().get());
        std::thread::sleep(due.saturating_sub(clock::wall()));
        let name = if zeroed { "zeroed" } else { "recall" };
        let key = (format!("{name}_{pages}"), "glebe");
        let request = Request::new(Pages::new(pages));
        let request = if zeroed { request.zeroed() } else { request };
        let mut held = match ask(reserve, request, zeroed) {
            Ok(held) => held,
            Err(e) => {
                self.faults.failures += 1;
                return self.none(key, e.to_string());
            }
        };
        *self.lent.entry(key.0.clone()).or_default() += held.recalled;
        self.wall_us.entry(key.clone()).or_default().push(held.elapsed.wall_us);
        self.cpu_us.entry(key).or_default().push(held.elapsed.cpu_us);
        self.faults.add(held.over_recall());
        self.faults.add(held.mark(Marking::Pages));
        self.held_pages += pages;
        self.held.push(held);
        tenant.put_new(LOOKED_AT);
        tenant.look(LOOKED_AT, reserve.len().get());
    }

    /// Looks at all blocks again, gives them back and fills the cache.
    fn release(&mut self, reserve: &Reserve, tenant: &mut Tenant) {
        for held in self.held.drain(..) {
            self.faults.add(held.check(Marking::Pages));
        }
        self.held_pages = 0;
        tenant.refill(reserve);
    }

    fn peer(&mut self, peer: Peer, pages: u64) {
        let key = (format!("recall_{pages}"), peer.name());
        let sample = peers::measure(peer, Pages::new(pages));
        match sample.failed {
            Some(why) => self.none(key, why),
            None => {
                self.wall_us.entry(key.clone()).or_default().push(sample.wall_us);
                self.cpu_us.entry(key).or_default().push(sample.cpu_us);
            }
        }
    }

    fn none(&mut self, key: (String, &'static str), why: String) {
        let entry = self.why_none.entry(key).or_default();
        *entry = (entry.0 + 1, why);
    }

    fn report(&self, longest: u64, report: &mut Report) {
        for pages in REQUEST_PAGES {
            for name in ["recall", "zeroed"] {
                let case = format!("{name}_{pages}");
                for who in ["glebe"].into_iter().chain(Peer::ALL.map(Peer::name)) {
                    self.report_one(&(case.clone(), who), report);
                }
            }
            if pages > longest {
                let why = format!("the longest run is {longest} pages; get larger huge pages");
                report.absent(&format!("recall_{pages}"), "glebe", "us", &why);
            }
        }
        let best = |pages: u64, of: fn(&Summary) -> f64| {
            let case = format!("recall_{pages}");
            let of_one = |who| {
                let samples = self.wall_us.get(&(case.clone(), who))?;
                Summary::of(samples).map(|s| of(&s))
            };
            let kernel = Peer::ALL.into_iter().filter_map(|p| of_one(p.name()));
            Some(kernel.min_by(f64::total_cmp)? / of_one("glebe")?)
        };
        if let Some(ratio) = best(LARGEST, |s| s.max) {
            report.ratio(&format!("max_{LARGEST}_vs_best_kernel"), ratio);
        }
        if let Some(ratio) = best(1, |s| s.p99) {
            report.ratio("p99_1_vs_best_kernel", ratio);
        }
        report.check("failures", self.faults.failures);
        report.check("stray_writes", self.faults.stray_writes);
        report.check("over_recall", self.faults.over_recall);
        report.check("not_contiguous", self.faults.not_contiguous);
        report.check("wrong_bytes", self.faults.not_zero);
    }

    fn report_one(&self, key: &(String, &'static str), report: &mut Report) {
        let (case, who) = (&*key.0, key.1);
        let failed = self.why_none.get(key);
        let Some(wall) = self.wall_us.get(key) else {
            if let Some((_, why)) = failed {
                report.absent(case, who, "us", why);
            }
            return;
        };
        report.row(case, who, "us", wall);
        if let Some((count, why)) = failed {
            report.remark(&format!("{count} failed: {why}"));
        } else if let Some(&lent) = self.lent.get(case).filter(|_| who == "glebe") {
            let each = lent as f64 / wall.len() as f64;
            report.remark(&format!("{each:.0} pages lent and called back each time"));
        }
        if let Some(cpu) = self.cpu_us.get(key) {
            report.row(case, who, "us cpu", cpu);
        }
    }
}
