//! [`Machine`] watches how fragmented the machine's memory is, for metrics.
//!
//! A thread reads `/proc/kpageflags` at the start, which takes 0.4 s for 24 GiB. Later it reads the
//! file only if somebody asked since the last time, at most every [`REST`], and at most for a
//! [`SHARE`]th of the time. A text has the last result and its date. Nothing waits for the thread,
//! not even the end of the process, because a reading cannot be interrupted.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glebe::internal::stats::seconds;
use glebe::internal::sys::machine::hugetlb::{sizes, smallest, Pool, PoolCounts};
use glebe::internal::sys::machine::kpage::survey;
use glebe::page_size;
use glebe::units::{Bytes, PageSize, Pages};

use super::openmetrics::Text;
use crate::contig::{cheapest, free_runs, Cost, Shares, LENGTHS};

/// Shortest time from one reading to the next.
const REST: Duration = Duration::from_secs(15);
/// A reading is followed by a pause of this many times its length.
const SHARE: u32 = 100;

/// Interval of checks whether somebody asked.
const LOOK: Duration = Duration::from_secs(1);

/// The result of a reading. Frames are hidden if there is no longest run.
struct Seen {
    date: Duration,
    shares: Option<Shares>,
    longest: Option<Bytes>,
    costs: Option<[Option<Cost>; LENGTHS.len()]>,
    pools: Vec<(PageSize, PoolCounts)>,
}

impl Seen {
    fn read() -> Self {
        let block = smallest();
        let each = block.bytes().pages_down(page_size());
        let blocks = survey(each).ok();
        let runs = blocks.as_ref().map(|blocks| free_runs(blocks, block));
        let pool = |size| Some((size, Pool::of(size)?.counts().ok()?));
        Self {
            date: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            shares: Shares::look(blocks.as_deref()).ok(),
            longest: runs.map(|runs| runs.into_iter().max().unwrap_or_default()),
            costs: blocks.map(|blocks| LENGTHS.map(|len| cheapest(&blocks, each, len))),
            pools: sizes().into_iter().filter_map(pool).collect(),
        }
    }
}

#[derive(Default)]
struct Board {
    seen: Mutex<Option<Seen>>,
    is_wanted: AtomicBool,
}

pub struct Machine(Arc<Board>);

impl Machine {
    pub fn watch() -> io::Result<Self> {
        let board = Arc::<Board>::default();
        let weak = Arc::downgrade(&board);
        let run = move || loop {
            let begin = Instant::now();
            let seen = Seen::read();
            let rest = REST.max(begin.elapsed() * SHARE);
            let Some(board) = weak.upgrade() else { return };
            *board.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            drop(board);
            thread::sleep(rest);
            while weak.upgrade().is_some_and(|it| !it.is_wanted.swap(false, Ordering::Relaxed)) {
                thread::sleep(LOOK);
            }
        };
        thread::Builder::new().name("glebe-machine".into()).spawn(run)?;
        Ok(Self(board))
    }

    /// Writes the families. Those that are unknown have no samples.
    pub fn write(&self, text: &mut Text) {
        self.0.is_wanted.store(true, Ordering::Relaxed);
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = &*seen {
            write(seen, text);
        }
    }
}

fn name(len: Bytes) -> String {
    len.to_string().replace(' ', "")
}

fn write(seen: &Seen, text: &mut Text) {
    let date = "when the machine's memory was read for these metrics, in seconds since 1970";
    text.family("glebe_machine_read_timestamp_seconds", "gauge", "seconds", date);
    text.sample(&[], seconds(seen.date.as_nanos() as u64));
    let visible = "1 if page frames are visible; 0 if not (no root), then long runs are unknown";
    text.family("glebe_machine_frames_visible", "gauge", "", visible);
    text.sample(&[], u8::from(seen.longest.is_some()));
    if let Some(shares) = &seen.shares {
        write_shares(shares, text);
    }
    if let Some(longest) = seen.longest {
        text.family("glebe_machine_longest_free_run_bytes", "gauge", "bytes", "longest free run");
        text.sample(&[], longest.get());
    }
    if let Some(costs) = &seen.costs {
        write_costs(costs, text);
    }
    for (state, what, count) in POOLS {
        let family = format!("glebe_machine_pool_{state}_bytes");
        text.family(&family, "gauge", "bytes", what);
        for (size, counts) in &seen.pools {
            let bytes = Pages::new(count(counts)).checked_bytes(*size).unwrap_or_default();
            text.sample(&[("page", &name(size.bytes()))], bytes.get());
        }
    }
}

type Counted = (&'static str, &'static str, fn(&PoolCounts) -> u64);

const POOLS: [Counted; 4] = [
    ("total", "huge pages in the kernel's pools, by their size", |counts| counts.total),
    ("free", "huge pages in pools that no program uses", |counts| counts.free),
    ("promised", "free huge pages promised to mappings", |counts| counts.reserved),
    ("surplus", "huge pages that leave their pool when they are freed", |counts| counts.surplus),
];

fn write_shares(shares: &Shares, text: &mut Text) {
    text.family("glebe_machine_memory_bytes", "gauge", "bytes", "all memory of the machine");
    text.sample(&[], shares.all.get());
    let free = "free memory: pages in the kernel's free lists";
    text.family("glebe_machine_free_bytes", "gauge", "bytes", free);
    text.sample(&[], shares.free.get());
    let known = || LENGTHS.iter().zip(&shares.in_runs).filter_map(|(len, it)| Some((len, (*it)?)));
    let what =
        "free memory in free runs of at least this length; a free run is adjacent huge pages \
        of the smallest size, all of whose frames are free (lengths without sample: unknown)";
    text.family("glebe_machine_free_run_bytes", "gauge", "bytes", what);
    for (len, bytes) in known() {
        text.sample(&[("at_least", &name(*len))], bytes.get());
    }
    let what = "part of free memory, and of all memory, that lies in free runs of at least this \
        length; 1 means no fragmentation (without sample: unknown, or no such memory)";
    text.family("glebe_machine_free_run_ratio", "gauge", "ratio", what);
    for (len, bytes) in known() {
        let (free, all) = shares.parts(bytes);
        for (of, part) in [("free", free), ("all", all)] {
            if let Some(part) = part {
                text.sample(&[("at_least", &name(*len)), ("of", of)], part);
            }
        }
    }
}

fn write_costs(costs: &[Option<Cost>; LENGTHS.len()], text: &mut Text) {
    let bytes = |pages: Pages| pages.bytes(page_size()).get();
    let known = || LENGTHS.iter().zip(costs).filter_map(|(len, cost)| Some((len, (*cost)?)));
    let what = "memory to move or drop for one run of this length at the cheapest place";
    text.family("glebe_machine_run_moved_bytes", "gauge", "bytes", what);
    for (len, cost) in known() {
        text.sample(&[("run", &name(*len))], bytes(cost.moved));
    }
    let what = "memory at the cheapest place for one run of this length that the kernel or a used \
        pool holds; above 0, the run cannot be had";
    text.family("glebe_machine_run_stuck_bytes", "gauge", "bytes", what);
    for (len, cost) in known() {
        text.sample(&[("run", &name(*len))], bytes(cost.stuck));
    }
}

#[cfg(test)]
mod tests {
    use glebe_testing::openmetrics::{parse, Family};

    use super::*;

    fn families(seen: &Seen) -> Vec<Family> {
        let mut text = Text::default();
        write(seen, &mut text);
        parse(&(text.text + "# EOF\n")).unwrap()
    }

    #[test]
    fn this_machine_has_every_family_or_says_that_frames_are_hidden() {
        let seen = Seen::read();
        let families = families(&seen);
        let of = |name: &str| families.iter().find(|family| family.name == name);
        let value = |name: &str, nth: usize| of(name).unwrap().samples[nth].value;
        let (all, free) =
            (value("glebe_machine_memory_bytes", 0), value("glebe_machine_free_bytes", 0));
        assert!(free <= all, "{free} of {all}");
        let ratios = &of("glebe_machine_free_run_ratio").unwrap().samples;
        assert!(ratios.iter().all(|sample| (0.0..=1.0).contains(&sample.value)), "{ratios:?}");
        let is_visible = value("glebe_machine_frames_visible", 0) > 0.0;
        assert_eq!(is_visible, of("glebe_machine_longest_free_run_bytes").is_some());
        assert_eq!(is_visible, of("glebe_machine_run_moved_bytes").is_some());
        if is_visible {
            assert_eq!(ratios.len(), 2 * LENGTHS.len());
            assert!(ratios.windows(3).all(|row| row[2].value <= row[0].value), "{ratios:?}");
        }
    }

    #[test]
    fn what_is_unknown_has_no_sample() {
        let in_runs = [Some(Bytes::mib(256)), None, None, None];
        let shares = Shares { free: Bytes::gib(1), all: Bytes::gib(4), in_runs };
        let hidden = Seen {
            date: Duration::from_secs(1),
            shares: Some(shares),
            longest: None,
            costs: None,
            pools: Vec::new(),
        };
        let families = families(&hidden);
        let of = |name: &str| families.iter().find(|family| family.name == name);
        let ratios = &of("glebe_machine_free_run_ratio").unwrap().samples;
        assert_eq!(ratios.iter().map(|it| it.value).collect::<Vec<_>>(), [0.25, 0.0625]);
        assert!(ratios.iter().all(|it| it.labels["at_least"] == "2MiB"));
        assert_eq!(of("glebe_machine_frames_visible").unwrap().samples[0].value, 0.0);
        assert!(of("glebe_machine_longest_free_run_bytes").is_none());
        assert!(of("glebe_machine_run_stuck_bytes").is_none());
    }
}
