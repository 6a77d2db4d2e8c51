//! [`Demo`]: files read through the cache of a reserve while blocks of it are called back.
//!
//! One thread reads the corpus; the calling thread asks for blocks of each size in
//! [`REQUEST_PAGES`] in turn, first of the reserve and then of the kernel on demand, so that all
//! meet the same machine. A block is written whole and read again before it is given back; its
//! frames are compared with what the reserve says of it. Units: microseconds, base pages.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use glebe::contig::Proof;
use glebe::reserve::{GranuleUse, Request, Reserve};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, Pages};

use super::reader::{Reader, Reading};
use super::requests::{ask, Faults, Marking};
use super::table::{self, Line};
use super::{map, picture, stress, Error, REQUEST_PAGES};
use crate::clock;
use crate::corpus::{Corpus, ReadPath};
use crate::interrupt::Stop;
use crate::peers::{self, Peer};
use crate::progress::Progress;

/// Who is asked beside the reserve.
const PEERS: [Peer; 2] = [Peer::SurplusHugetlb, Peer::Thp];
const RESERVE: &str = "glebe";
const LEN_MIN: Bytes = Bytes::mib(64);

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the files lie; a directory that every machine has by default.
    pub dir: Option<PathBuf>,
    /// A small reserve and few requests.
    pub quick: bool,
    /// Bytes of the reserve.
    pub size: Option<Bytes>,
}

/// A reserve and the files to read through it.
#[derive(Debug)]
pub struct Demo {
    reserve: Reserve,
    corpus: Corpus,
    quick: bool,
    /// Whether the statistics are served.
    shown: bool,
}

/// What was measured and found.
#[derive(Debug)]
pub struct Outcome {
    lines: Vec<Line>,
    reading: Reading,
    faults: Faults,
    evicted: u64,
    recalled: u64,
    asked: u64,
    moved_runs: u64,
    identities: Option<String>,
    fullest: Vec<GranuleUse>,
    len: Bytes,
    source: String,
}

impl Demo {
    /// Makes the reserve and chooses the files: of a reserve that cannot be had, half, unless its
    /// size was asked for.
    ///
    /// # Errors
    /// If there is no reserve of the least size, or no files.
    pub fn set_up(options: &Options) -> Result<Self, Error> {
        let mut len = match options.size {
            Some(size) => size,
            None => {
                let most = if options.quick { Bytes::mib(256) } else { Bytes::gib(1) };
                most.min(Bytes::new(meminfo::available()?.get() / 4)).max(LEN_MIN)
            }
        };
        let reserve = loop {
            match map(len, Reserve::builder()) {
                Err(Error::Map { .. }) if options.size.is_none() && len > LEN_MIN => {
                    len = Bytes::new(len.get() / 2).max(LEN_MIN);
                }
                other => break other?,
            }
        };
        // Without it the demo is the same; how to look is said where it works.
        let shown = reserve.serve_stats().is_ok();
        let cap = reserve.len().bytes(page_size());
        let corpus = Corpus::open(options.dir.as_deref(), ReadPath::Auto, cap)?;
        Ok(Self { reserve, corpus, quick: options.quick, shown })
    }

    /// Asks and reads.
    ///
    /// # Errors
    /// If the cache cannot be had or the reader panicked; all else is in the outcome.
    pub fn run(&self) -> Result<Outcome, Error> {
        let pool = self.reserve.page_cache().pool("demo")?;
        let reader = Reader::default();
        let mut outcome = self.outcome();
        std::thread::scope(|scope| {
            let _stop = Stop(&reader.stop);
            let reading = scope.spawn(|| reader.run(&self.corpus, &pool));
            self.first_pass(&reader, || reading.is_finished());
            self.ask_all(&mut outcome);
            reader.stop.store(true, Ordering::Relaxed);
            outcome.reading =
                reading.join().map_err(|_| Error::Thread("the reader panicked".into()))??;
            Ok::<_, Error>(())
        })?;
        let stats = self.reserve.stats();
        (outcome.evicted, outcome.recalled) = (stats.evicted, stats.recalled);
        outcome.asked =
            outcome.lines.iter().filter(|line| line.who == RESERVE).map(Line::pages_given).sum();
        outcome.identities = stats.check().err();
        let contig = self.reserve.contig();
        if contig.pinned() {
            outcome.moved_runs = contig.verify()?.len() as u64;
        }
        Ok(outcome)
    }

    /// Lets the reader fill the cache, for a while.
    fn first_pass(&self, reader: &Reader, ended: impl Fn() -> bool) {
        let patience = Duration::from_secs(if self.quick { 8 } else { 60 });
        let total = self.corpus.pages().get();
        let mut progress = Progress::new("filling the cache", total);
        let start = clock::wall();
        loop {
            let done = reader.first_pass.load(Ordering::Relaxed);
            progress.update(done);
            if done >= total || ended() || clock::wall() - start > patience {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        progress.finish();
    }

    fn ask_all(&self, outcome: &mut Outcome) {
        let rounds = if self.quick { 8 } else { 32 };
        let steps = rounds * REQUEST_PAGES.len() as u64;
        let mut progress = Progress::new("requests", steps);
        for step in 0..steps {
            let size = step as usize % REQUEST_PAGES.len();
            let lines = &mut outcome.lines[size * (1 + PEERS.len())..][..1 + PEERS.len()];
            let (own, peers) = lines.split_at_mut(1);
            if let Some(request) = self.request(&mut own[0]) {
                outcome.faults.add(self.ask_one(request, &mut own[0], &mut outcome.fullest));
            }
            for (peer, line) in PEERS.into_iter().zip(peers) {
                let sample = peers::measure(peer, Pages::new(line.pages));
                match sample.failed {
                    None => line.sample(sample.wall_us, sample.longest_run),
                    Some(why) => line.failed(why),
                }
            }
            progress.update(step + 1);
            self.refill();
        }
        progress.finish();
    }

    /// Waits until the reader has filled what came back, or for as long as patience lasts.
    fn refill(&self) {
        let patience = Duration::from_millis(if self.quick { 150 } else { 500 });
        let enough = self.reserve.len().get() / 64;
        let start = clock::wall();
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let free: u64 = self.reserve.usage().iter().map(|g| g.free.get()).sum();
            if free <= enough || clock::wall() - start > patience {
                return;
            }
        }
    }

    /// How a size is asked for; `None`, with the reason on its line, if it cannot be.
    fn request(&self, line: &mut Line) -> Option<Request> {
        let contig = self.reserve.contig();
        let (longest, half) = (contig.longest_run().get(), self.reserve.len().get() / 2);
        let request = Request::new(Pages::new(line.pages));
        let hidden = matches!(contig.proof(), Proof::Within(_));
        if line.pages > half {
            line.note = Some(format!("refused: more than half the reserve, {half} pages"));
            return None;
        }
        match (line.pages <= longest, hidden) {
            (true, _) => Some(request),
            (false, true) => {
                line.note = Some(format!("in addresses only: runs proved up to {longest} pages"));
                Some(request.any())
            }
            (false, false) => {
                line.note = Some(format!("refused: the longest run is {longest} pages"));
                None
            }
        }
    }

    fn ask_one(&self, request: Request, line: &mut Line, fullest: &mut Vec<GranuleUse>) -> Faults {
        let mut held = match ask(&self.reserve, Duration::ZERO, request, false) {
            Ok(held) => held,
            Err(e) => {
                line.failed(e.to_string());
                return Faults { failures: 1, ..Faults::default() };
            }
        };
        line.sample(held.elapsed.wall_us, held.longest_run);
        let mut faults = held.mark(Marking::Whole);
        faults.add(held.over_recall());
        let usage = self.reserve.usage();
        let weight = |usage: &[GranuleUse]| {
            let used = usage.iter().map(|g| g.first_class.get() + g.tenant.get()).sum::<u64>();
            // Of two equally full, the one with more first class shows more.
            (used, usage.iter().map(|g| g.first_class.get()).sum::<u64>())
        };
        if weight(&usage) > weight(fullest) {
            *fullest = usage;
        }
        faults.add(held.check(Marking::Whole));
        faults
    }

    fn outcome(&self) -> Outcome {
        let lines = REQUEST_PAGES.into_iter().flat_map(|pages| {
            let who = [RESERVE].into_iter().chain(PEERS.into_iter().map(Peer::name));
            who.map(move |who| Line::new(pages, who))
        });
        Outcome {
            lines: lines.collect(),
            reading: Reading::default(),
            faults: Faults::default(),
            evicted: 0,
            recalled: 0,
            asked: 0,
            moved_runs: 0,
            identities: None,
            fullest: Vec::new(),
            len: self.reserve.len().bytes(page_size()),
            source: self.corpus.to_string(),
        }
    }
}

impl fmt::Display for Demo {
    /// What there is to work with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contig = self.reserve.contig();
        let proof = match contig.proof() {
            Proof::Frames => "page frames read".to_owned(),
            Proof::Within(pages) => format!("frames hidden, proved within {pages}"),
        };
        writeln!(f, "reserve   {} of {}", contig.len(), contig.source())?;
        let (runs, longest) = (contig.runs().len(), contig.longest_run());
        writeln!(f, "runs      {runs}, the longest {longest} ({proof})")?;
        for reason in contig.why_not_better() {
            writeln!(f, "          not better: {reason}")?;
        }
        writeln!(f, "writers   {}", stress::writers(&self.reserve))?;
        writeln!(f, "files     {}", self.corpus)?;
        if self.shown {
            writeln!(f, "meanwhile glebe stats --pid {}", std::process::id())?;
        }
        Ok(())
    }
}

impl Outcome {
    /// Whether nothing failed and every check held.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks().iter().all(|&(_, count)| count == 0) && self.identities.is_none()
    }

    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        picture::draw(self.len, &self.fullest, &self.lines, &self.source)
    }

    /// Counts that must be 0.
    fn checks(&self) -> [(&'static str, u64); 8] {
        [
            ("requests that failed", self.faults.failures),
            ("bytes changed in held blocks", self.faults.stray_writes),
            ("blocks not contiguous", self.faults.not_contiguous),
            ("runs that moved", self.moved_runs),
            ("hits with wrong bytes", self.reading.wrong_pages),
            ("calls that failed", self.reading.errors.len() as u64),
            ("pages recalled beyond need", self.faults.over_recall),
            ("no time saved", u64::from(self.reading.saved_s() <= 0.0)),
        ]
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::write(&self.lines, f)?;
        let r = &self.reading;
        writeln!(
            f,
            "\npages     {} evicted, {} recalled among {} given",
            self.evicted, self.recalled, self.asked
        )?;
        writeln!(
            f,
            "cache     {} hits of {:.2} us, {} misses of {:.2} us to read",
            r.hits,
            r.hit_us(),
            r.misses,
            r.read_us()
        )?;
        writeln!(
            f,
            "saved     {:.2} s, the {:.2} s that keeping pages cost deducted",
            r.saved_s(),
            r.keep_s
        )?;
        if r.unreadable > 0 {
            writeln!(f, "          {} reads of files that changed or failed", r.unreadable)?;
        }
        writeln!(f, "kernel memory comes zeroed; the reserve's was not asked to be")?;
        writeln!(f, "\nchecks (must be 0)")?;
        for (name, count) in self.checks() {
            writeln!(f, "  {name:30} {count}{}", if count == 0 { "" } else { "  WRONG" })?;
        }
        for error in r.errors.iter().chain(&self.identities) {
            writeln!(f, "  {error}")?;
        }
        Ok(())
    }
}
