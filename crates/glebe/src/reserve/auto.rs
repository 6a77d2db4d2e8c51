//! [`Auto`]: whether the page cache should store pages compressed.
//!
//! Compressed pages cost time to code and to decode, and save what misses cost that more room
//! would have made hits. The cache decides by samples of its own, each time that so many puts were
//! sampled, on what was seen since the last time ([`Seen::decide`], a pure function):
//!
//! * *room*: how many pages would be held in the place of one, from the sampled pages' coded sizes;
//! * *ghosts*: hashes of evicted pages, a sixteenth of them, for about twice as many pages as the
//!   cache has. A miss that meets one would have been a hit with so much more room; with less,
//!   that part of them counts;
//! * *the cost of a miss*: as stated, or the time from a miss to the same thread's put of its key;
//! * *coding and decoding*: the sampled pages', timed.
//!
//! While pages are stored plain, what is gained a get is the ghosts that would be hits, times the
//! cost of a miss; once they are compressed it is the hits on compressed pages, of which a plain
//! cache would hold one in *room*, times that cost. It must be a quarter more than coding the puts
//! and decoding the hits costs for the cache to change, and fall a quarter below to change back.
//! After a change it waits until the cache was filled in the new way.
//! Without a miss that was followed by its put nothing is known, and it stays as it is.
//!
//! Unit: nanoseconds a get. Cost: a test of the hash a miss and a put; a coding and a decoding a
//! sampled put, one in [`CODED_EVERY`].

use std::time::Duration;

use super::table::{Table, Tables};
use crate::error::OsError;
use crate::stats::{lane, LANES};
use crate::sync::{MappedWord, Ordering};
use crate::sys::ticks::Rate;
use crate::zpool::{same_filled, Codec, CodecError, Coder, Form};

/// Of so many keys one is remembered when its page is evicted. A power of two.
const GHOST_EVERY: u64 = 16;
/// For each page of the reserve so many evicted ones are remembered, but for the sampling.
const GHOST_PAGES: usize = 2;
/// Of so many keys one has its page coded for a trial at each put. A power of two.
const CODED_EVERY: u64 = 1024;
/// Pages coded between two decisions.
const SAMPLES: u64 = 32;
/// No miss counts as longer, nor as so many times the mean of those before the last decision: a
/// thread may do other things between a miss and its put.
const MISS_NS_MAX: u64 = 1_000_000_000;
const MISS_PER_MEAN: f64 = 16.0;
/// Bits of a hash that choose neither a bucket nor a tag of the index.
const GHOST_AT: u32 = 40;
const CODED_AT: u32 = 36;

/// What was seen since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Gets, of which some hit, some of these a compressed page.
    pub(super) gets: f64,
    pub(super) hits: f64,
    pub(super) packed_hits: f64,
    pub(super) puts: f64,
    /// Misses of pages that were evicted not long before.
    pub(super) ghosts: f64,
    /// What part of the sampled pages shrinks enough.
    pub(super) shrinks: f64,
    /// To what part of a page these do.
    pub(super) size: f64,
    pub(super) code_ns: f64,
    pub(super) decode_ns: f64,
    /// Unknown where `None`.
    pub(super) miss_ns: Option<f64>,
    /// The way changed so short ago that the pages there tell of the other.
    pub(super) is_settling: bool,
}

/// What compressed pages would gain and cost, as the page cache sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether pages are stored compressed.
    pub is_compressing: bool,
    /// Pages that would be held in the place of one.
    pub room: f64,
    /// Time saved by misses that are none, in nanoseconds a get.
    pub gain_ns: f64,
    /// Time for coding and decoding, in nanoseconds a get.
    pub cost_ns: f64,
}

impl Seen {
    /// See the module.
    pub(super) fn decide(&self, is_compressing: bool) -> Decision {
        const MARGIN: f64 = 0.25;
        let room = 1.0 / (self.shrinks * self.size + 1.0 - self.shrinks).max(0.01);
        let a_get = |n: f64| if self.gets > 0.0 { n / self.gets } else { 0.0 };
        let stays = Decision { is_compressing, room, gain_ns: 0.0, cost_ns: 0.0 };
        let is_known = self.gets > 0.0 && !self.is_settling;
        let Some(miss_ns) = self.miss_ns.filter(|_| is_known) else { return stays };
        let (saved, decoded) = if is_compressing {
            (self.packed_hits * (1.0 - 1.0 / room), self.packed_hits)
        } else {
            let more = ((room - 1.0) / GHOST_PAGES as f64).clamp(0.0, 1.0) * self.ghosts;
            (more, (self.hits + more) * self.shrinks)
        };
        let gain_ns = a_get(saved) * miss_ns;
        let cost_ns = a_get(self.puts) * self.code_ns + a_get(decoded) * self.decode_ns;
        let margin = if is_compressing { 1.0 - MARGIN } else { 1.0 + MARGIN };
        let is_compressing = gain_ns > cost_ns * margin;
        Decision { is_compressing, room, gain_ns, cost_ns }
    }
}

/// Words that threads add to. Relaxed.
#[derive(Debug, Default)]
struct Sums {
    ghosts: MappedWord,
    coded: MappedWord,
    shrunk: MappedWord,
    shrunk_bytes: MappedWord,
    code_ns: MappedWord,
    decode_ns: MappedWord,
    misses: MappedWord,
    miss_ns: MappedWord,
}

/// The last sampled miss of a lane of threads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Miss {
    hash: MappedWord,
    tick: MappedWord,
}

/// Totals of a reserve's statistics that count here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) packed_hits: u64,
    pub(super) puts: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Auto {
    stated: Option<Duration>,
    ghosts: Table<MappedWord>,
    missed: [Miss; LANES],
    sums: Sums,
    /// No miss counts as longer.
    miss_ns_max: MappedWord,
    /// At the last decision.
    totals: [MappedWord; 4],
    /// Puts after which what is seen tells of the way that pages are stored now.
    settled_at: MappedWord,
    /// The last decision: bits of its numbers.
    decision: [MappedWord; 4],
    clock: Rate,
    coder: Coder,
}

fn add(word: &MappedWord, n: u64) {
    word.fetch_add(n, Ordering::Relaxed);
}

fn take(word: &MappedWord) -> f64 {
    word.swap(0, Ordering::Relaxed) as f64
}

impl Auto {
    /// For a reserve of `pages` pages of so many bytes. A miss costs what is stated, or what is
    /// measured.
    pub(super) fn new(
        tables: &mut Tables,
        pages: usize,
        page_bytes: usize,
        stated: Option<Duration>,
    ) -> Result<Self, OsError> {
        let ghosts = (pages * GHOST_PAGES / GHOST_EVERY as usize).next_power_of_two();
        let none = |_: CodecError| {
            OsError::new("malloc", "a coder", std::io::ErrorKind::OutOfMemory.into())
        };
        Ok(Self {
            stated,
            ghosts: tables.table(ghosts, |_| MappedWord::new(0))?,
            missed: std::array::from_fn(|_| Miss::default()),
            sums: Sums::default(),
            miss_ns_max: MappedWord::new(MISS_NS_MAX),
            totals: std::array::from_fn(|_| MappedWord::new(0)),
            settled_at: MappedWord::new(0),
            decision: std::array::from_fn(|_| MappedWord::new(0)),
            clock: Rate::measured(),
            coder: Coder::new(Codec::Lz4, page_bytes).map_err(none)?,
        })
    }

    fn ghost(&self, hash: u64) -> Option<&MappedWord> {
        let is_sampled = (hash >> GHOST_AT) % GHOST_EVERY == 0;
        is_sampled.then(|| &self.ghosts[hash as usize & (self.ghosts.len() - 1)])
    }

    /// A page of that hash went for want of room.
    #[inline]
    pub(super) fn evicted(&self, hash: u64) {
        if let Some(ghost) = self.ghost(hash) {
            ghost.store(hash | 1, Ordering::Relaxed);
        }
    }

    /// A page of that hash was not found.
    #[inline]
    pub(super) fn missed(&self, hash: u64) {
        let Some(ghost) = self.ghost(hash) else { return };
        if ghost.load(Ordering::Relaxed) == hash | 1 {
            ghost.store(0, Ordering::Relaxed);
            add(&self.sums.ghosts, GHOST_EVERY);
        }
        let miss = &self.missed[lane()];
        miss.hash.store(hash | 1, Ordering::Relaxed);
        miss.tick.store(self.clock.now(), Ordering::Relaxed);
    }

    /// A page of that hash is put; whether it is time to decide.
    #[inline]
    pub(super) fn put(&self, hash: u64, page: &[u8]) -> bool {
        if self.ghost(hash).is_some() {
            let miss = &self.missed[lane()];
            if miss.hash.load(Ordering::Relaxed) == hash | 1 {
                miss.hash.store(0, Ordering::Relaxed);
                add(&self.sums.misses, 1);
                let took = self.clock.nanos_since(miss.tick.load(Ordering::Relaxed));
                let most = self.miss_ns_max.load(Ordering::Relaxed);
                add(&self.sums.miss_ns, took.min(most));
            }
        }
        (hash >> CODED_AT) % CODED_EVERY == 0 && self.code(page)
    }

    /// Codes a page and decodes it again.
    #[cold]
    fn code(&self, page: &[u8]) -> bool {
        let begin = self.clock.now();
        let most = page.len() / 4 * 3;
        let coded = if same_filled(page).is_some() {
            Some(Vec::new())
        } else {
            self.coder.encode(page, most, |form, bytes| (form == Form::Lz4).then(|| bytes.to_vec()))
        };
        let sums = &self.sums;
        add(&sums.code_ns, self.clock.nanos_since(begin));
        if let Some(coded) = coded {
            add(&sums.shrunk, 1);
            add(&sums.shrunk_bytes, coded.len() as u64);
            let mut out = vec![0; page.len()];
            let begin = self.clock.now();
            if !coded.is_empty() {
                let _ = self.coder.decode(Form::Lz4, &coded, &mut out);
            }
            add(&sums.decode_ns, self.clock.nanos_since(begin));
        }
        (sums.coded.fetch_add(1, Ordering::Relaxed) + 1) % SAMPLES == 0
    }

    /// Decides; whether pages are to be stored compressed.
    #[cold]
    pub(super) fn decide(&self, now: Totals, page_bytes: usize) -> bool {
        let since = |at: usize, now: u64| {
            now.saturating_sub(self.totals[at].swap(now, Ordering::Relaxed)) as f64
        };
        let (hits, misses) = (since(0, now.hits), since(1, now.misses));
        let (packed_hits, puts) = (since(2, now.packed_hits), since(3, now.puts));
        let sums = &self.sums;
        let (coded, shrunk) = (take(&sums.coded).max(1.0), take(&sums.shrunk));
        let (waits, wait_ns) = (take(&sums.misses), take(&sums.miss_ns));
        let measured = (waits > 0.0).then(|| wait_ns / waits);
        if let Some(mean) = measured {
            let most = (mean * MISS_PER_MEAN) as u64;
            self.miss_ns_max.store(most.clamp(1, MISS_NS_MAX), Ordering::Relaxed);
        }
        let seen = Seen {
            gets: hits + misses,
            hits,
            packed_hits,
            puts,
            ghosts: take(&sums.ghosts),
            shrinks: shrunk / coded,
            size: take(&sums.shrunk_bytes) / shrunk.max(1.0) / page_bytes as f64,
            code_ns: take(&sums.code_ns) / coded,
            decode_ns: take(&sums.decode_ns) / shrunk.max(1.0),
            miss_ns: self.stated.map(|cost| cost.as_nanos() as f64).or(measured),
            is_settling: now.puts < self.settled_at.load(Ordering::Relaxed),
        };
        let before = self.decision();
        let decision = seen.decide(before.is_compressing);
        if decision.is_compressing != before.is_compressing {
            let pages = (self.ghosts.len() * GHOST_EVERY as usize) as f64 * decision.room;
            self.settled_at.store(now.puts + pages as u64, Ordering::Relaxed);
        }
        let parts = [decision.room, decision.gain_ns, decision.cost_ns];
        for (word, part) in self.decision[1..].iter().zip(parts) {
            word.store(part.to_bits(), Ordering::Relaxed);
        }
        self.decision[0].store(decision.is_compressing.into(), Ordering::Relaxed);
        decision.is_compressing
    }

    /// Whether pages are to be stored compressed.
    #[inline]
    pub(super) fn is_compressing(&self) -> bool {
        self.decision[0].load(Ordering::Relaxed) != 0
    }

    /// The last decision.
    pub(super) fn decision(&self) -> Decision {
        let part = |at: usize| f64::from_bits(self.decision[at].load(Ordering::Relaxed));
        let is_compressing = self.is_compressing();
        Decision { is_compressing, room: part(1), gain_ns: part(2), cost_ns: part(3) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Half of the gets miss, each miss of a page that was there; pages shrink to a third.
    fn seen() -> Seen {
        Seen {
            gets: 1000.0,
            hits: 500.0,
            packed_hits: 500.0,
            puts: 500.0,
            ghosts: 500.0,
            shrinks: 1.0,
            size: 1.0 / 3.0,
            code_ns: 8000.0,
            decode_ns: 2000.0,
            miss_ns: Some(100_000.0),
            is_settling: false,
        }
    }

    #[test]
    fn pages_are_compressed_where_misses_cost_more_than_coding() {
        let decision = seen().decide(false);
        assert!(decision.is_compressing && (decision.room - 3.0).abs() < 1e-9, "{decision:?}");
        assert!((decision.gain_ns - 50_000.0).abs() < 1e-6, "{decision:?}");
        assert!((decision.cost_ns - (4000.0 + 2000.0)).abs() < 1e-6, "{decision:?}");
        assert!(!Seen { miss_ns: Some(10_000.0), ..seen() }.decide(false).is_compressing);
    }

    #[test]
    fn without_a_use_for_room_pages_stay_as_they_are() {
        for useless in [
            Seen { ghosts: 0.0, ..seen() },
            Seen { shrinks: 0.0, ..seen() },
            Seen { size: 1.0, ..seen() },
            Seen { miss_ns: None, ..seen() },
            Seen { gets: 0.0, ..seen() },
            Seen::default(),
        ] {
            assert!(!useless.decide(false).is_compressing, "{useless:?}");
        }
    }

    #[test]
    fn a_decision_is_not_taken_back_at_once() {
        // Of 500 hits on compressed pages two thirds would be misses.
        let gain = 500.0 * (2.0 / 3.0);
        let cost = 500.0 * 8000.0 + 500.0 * 2000.0;
        let even = cost / gain;
        let at = |part: f64| Seen { miss_ns: Some(even * part), ..seen() };
        assert!(at(1.0).decide(true).is_compressing && at(0.8).decide(true).is_compressing);
        assert!(!at(0.7).decide(true).is_compressing);
        assert!(Seen { miss_ns: None, ..seen() }.decide(true).is_compressing);
        assert!(Seen { packed_hits: 0.0, is_settling: true, ..seen() }.decide(true).is_compressing);
    }

    #[test]
    fn more_room_than_ghosts_tell_of_counts_as_so_much() {
        let all = Seen { size: 0.1, ..seen() }.decide(false);
        let none = Seen { size: 0.01, ..seen() }.decide(false);
        assert!(all.room > 9.0 && (all.gain_ns - none.gain_ns).abs() < 1e-9);
    }

    #[test]
    fn a_thread_that_does_other_things_after_a_miss_tells_little_of_its_cost() {
        let mut tables = Tables::new(crate::units::Bytes::mib(1)).unwrap();
        let auto = Auto::new(&mut tables, 1 << 10, 4 << 10, None).unwrap();
        let hash = (0..).find(|hash| auto.ghost(*hash).is_some()).unwrap() | 1 << CODED_AT;
        let waited = |ticks_ago: u64| {
            auto.missed(hash);
            let tick = &auto.missed[lane()].tick;
            tick.store(auto.clock.now().saturating_sub(ticks_ago), Ordering::Relaxed);
            auto.put(hash, &[0; 4 << 10]);
            take(&auto.sums.miss_ns) as u64
        };
        assert_eq!(waited(1 << 60), MISS_NS_MAX);
        let short = waited(0);
        add(&auto.sums.miss_ns, short);
        auto.decide(Totals::default(), 4 << 10);
        assert!(waited(1 << 60) < MISS_NS_MAX, "as long as any");
    }
}
