//! [`run`] runs a byte string as calls on a pool and a map, and compares the answers.
//!
//! The first bytes choose the pool; each call takes a few more. Past the end, calls get zeros.
//! Objects held by a guard must never change. Unit: bytes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_zpool::{
    AtLimit, Budget, Codec, Compaction, Error, Guard, Handle, ObjectPool, Options, Rules, Table,
    TableChoice, Zstd,
};

#[path = "calls.rs"]
mod calls;

use calls::{object, Program};

/// Bytes that a full pool may leave unused: a zspage, and one growth of an internal table.
const SLACK: u64 = 1 << 18;
/// Bytes beyond the limit that a pool may hold after a change of its size classes.
const TABLES: u64 = 1 << 18;
const GUARDS_MAX: usize = 8;

impl Program<'_> {
    /// Returns a length of 0 to a page plus 1 byte; often one of few values, so that slots are
    /// reused.
    fn len(&mut self) -> usize {
        let page = page();
        match self.next() % 8 {
            0 | 1 => 1 + self.below(64),
            2 => [48, 320, 1000, 1360, 2500, page][self.below(6)],
            3 => page - self.below(16),
            4 => self.below(page + 2),
            _ => 1 + self.below(page),
        }
    }

    fn budget(&mut self) -> (u8, Budget) {
        let amount = self.next() / 4;
        let budget = match self.next() % 4 {
            0 => Budget::All,
            1 => Budget::Time(Duration::from_micros(amount.into())),
            _ => Budget::Pages(Pages::new(amount.into())),
        };
        (amount, budget)
    }

    fn rules(&mut self) -> Rules {
        let rules = Rules::of_page(page_size());
        let chain = Pages::new([1, 4, 8, 16][self.below(4)]);
        let step = Bytes::new(rules.step.get() << (self.next() % 4));
        let min = Bytes::new(32 << (self.next() % 3));
        Rules { chain, step, min, merge: self.next() % 2 == 0, ..rules }
    }

    /// Returns options, and whether the pool evicts and fits its table.
    fn options(&mut self) -> (Options, bool, bool) {
        let limit = Bytes::new([512 << 10, 1 << 20, 3 << 20, 64 << 20][self.below(4)]);
        let evicts = self.next() % 2 == 1;
        let at_limit = if evicts { AtLimit::EvictOldest } else { AtLimit::Refuse };
        let compaction = [Compaction::Automatic, Compaction::Manual][self.below(2)];
        let table = match self.next() % 3 {
            0 => TableChoice::BySize,
            1 => TableChoice::Fitted,
            _ => TableChoice::Rules(self.rules()),
        };
        let options = ObjectPool::options().limit(limit).at_limit(at_limit);
        let codec = [Codec::None, Codec::Lz4, Codec::Zstd(Zstd::default())][self.below(3)].clone();
        let is_fitted = table == TableChoice::Fitted;
        (options.compaction(compaction).table(table).codec(codec), evicts, is_fitted)
    }
}

fn page() -> usize {
    page_size().bytes().as_usize()
}

struct Both<'a> {
    pool: &'a ObjectPool,
    evicts: bool,
    has_other_table: bool,
    limit: Bytes,
    /// Address space is reserved for this limit.
    first_limit: Bytes,
    map: HashMap<Handle, Vec<u8>>,
    order: Vec<Handle>,
    gone: HashSet<Handle>,
    last_gone: Option<Handle>,
    held: Vec<(Guard<'a>, Vec<u8>)>,
    evicted: u64,
    /// Number of objects made so far; it seeds their bytes.
    seed: u64,
}

/// Runs `program` on a pool and a map.
///
/// # Panics
/// At the first difference.
pub fn run(program: &[u8]) {
    let mut program = Program(program);
    let (options, evicts, has_other_table) = program.options();
    let pool = match options.build() {
        Ok(pool) => pool,
        Err(Error::LimitBelowHeld { limit, held }) => {
            assert!(held > limit, "an empty pool holds {held}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let limit = Bytes::new(pool.stats().limit_bytes);
    let mut both = Both {
        pool: &pool,
        evicts,
        has_other_table,
        limit,
        first_limit: limit,
        map: HashMap::new(),
        order: Vec::new(),
        gone: HashSet::new(),
        last_gone: None,
        held: Vec::new(),
        evicted: 0,
        seed: 0,
    };
    while !program.0.is_empty() {
        both.step(&mut program);
        both.check();
    }
    both.check();
    both.end();
}

impl<'a> Both<'a> {
    fn step(&mut self, program: &mut Program<'_>) {
        match program.next() % 20 {
            0..=5 => self.insert_some(program),
            6 | 7 => self.remove(program),
            8 => self.remove_many(program),
            9 | 10 => self.replace(program),
            11 | 12 => self.read(program),
            13 => self.stale(program),
            14 => self.forged(program),
            15 => self.hold(program),
            16 => drop(self.held.drain(..self.held.len() / 2 + self.held.len() % 2)),
            17 => self.compact(program),
            18 => self.set_limit(program),
            _ => self.set_table(program),
        }
    }

    fn nth(&mut self, program: &mut Program<'_>) -> Option<(usize, Handle)> {
        let at = program.below(self.order.len());
        self.order.get(at).map(|&handle| (at, handle))
    }

    fn went(&mut self, at: usize) {
        let handle = self.order.swap_remove(at);
        self.map.remove(&handle);
        self.gone.insert(handle);
        self.last_gone = Some(handle);
    }

    fn find_evicted(&mut self) {
        let evicted = self.pool.stats().evicted;
        assert!(self.evicts || evicted == 0, "evicted without leave");
        let before = self.order.len();
        for at in (0..before).rev() {
            match self.pool.len_of(self.order[at]) {
                Ok(len) => assert_eq!(len, self.map[&self.order[at]].len()),
                Err(Error::Stale) => self.went(at),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(
            (before - self.order.len()) as u64,
            evicted - self.evicted,
            "went by themselves"
        );
        self.evicted = evicted;
    }

    fn is_full(&self, error: &Error) -> bool {
        match error {
            Error::Full { held, limit, .. } => {
                assert_eq!(*limit, self.limit);
                let room = self.first_limit.min(*limit);
                assert!(held.get() + SLACK >= room.get(), "room is left: {error}");
                true
            }
            _ => false,
        }
    }

    /// Inserts objects of similar length, so that short programs fill pools.
    fn insert_some(&mut self, program: &mut Program<'_>) {
        let (many, len) = (1 + program.below(32), program.len());
        let (spread, kind) = (1 + program.below(200), program.next());
        for nth in 0..many {
            self.insert(len.saturating_sub(nth * 7 % spread), kind);
        }
        self.find_evicted();
    }

    fn insert(&mut self, len: usize, kind: u8) {
        let bytes = object(kind, self.seed, len);
        self.seed += 1;
        match self.pool.insert(&bytes) {
            Ok(handle) => {
                assert!((1..=page()).contains(&len), "{len} bytes are no object");
                assert!(self.map.insert(handle, bytes).is_none(), "a handle twice");
                assert!(!self.gone.contains(&handle), "a handle again");
                self.order.push(handle);
            }
            Err(Error::Empty) => assert_eq!(len, 0),
            Err(Error::TooLong { len: told, .. }) => assert!(told == len && len > page()),
            Err(error) => assert!(self.is_full(&error), "{error}"),
        }
    }

    fn remove(&mut self, program: &mut Program<'_>) {
        let Some((at, handle)) = self.nth(program) else { return };
        self.pool.remove(handle).unwrap();
        self.went(at);
    }

    fn remove_many(&mut self, program: &mut Program<'_>) {
        let (every, from) = (2 + program.below(4), program.below(4));
        for at in (0..self.order.len()).rev().filter(|at| at % every == from) {
            self.pool.remove(self.order[at]).unwrap();
            self.went(at);
        }
    }

    fn replace(&mut self, program: &mut Program<'_>) {
        let Some((_, handle)) = self.nth(program) else { return };
        let len = program.len();
        let bytes = object(program.next(), self.seed, len);
        self.seed += 1;
        match self.pool.replace(handle, &bytes) {
            Ok(()) => {
                assert!((1..=page()).contains(&len), "{len} bytes are no object");
                self.map.insert(handle, bytes);
            }
            Err(Error::Empty) => assert_eq!(len, 0),
            Err(Error::TooLong { .. }) => assert!(len > page()),
            // The object was evicted to make room for its new bytes.
            Err(Error::Stale) => assert!(self.evicts, "an object is gone"),
            Err(error) => assert!(self.is_full(&error), "{error}"),
        }
        self.find_evicted();
    }

    fn read(&mut self, program: &mut Program<'_>) {
        let Some((_, handle)) = self.nth(program) else { return };
        self.is_object(handle);
        let len = self.map[&handle].len();
        let given = program.below(len);
        match self.pool.read(handle, &mut vec![0; given]) {
            Err(Error::BufferTooSmall { given: told, len: needed }) => {
                assert_eq!((told, needed), (given, len));
            }
            other => panic!("{other:?} of a buffer of {given} for {len}"),
        }
    }

    fn is_object(&self, handle: Handle) {
        let (bytes, mut buf) = (&self.map[&handle], vec![0xee; page() + 1]);
        let len = self.pool.read(handle, &mut buf).unwrap();
        assert!(buf[..len] == **bytes, "the bytes of an object of {len}, {}", bytes.len());
        assert!(buf[len..].iter().all(|&byte| byte == 0xee), "written beyond the object");
        assert_eq!(self.pool.len_of(handle).unwrap(), bytes.len());
        assert!(*self.pool.get(handle).unwrap() == **bytes, "the bytes in place");
    }

    fn is_gone(&self, handle: Handle) {
        let pool = self.pool;
        assert!(matches!(pool.read(handle, &mut vec![0; page()]), Err(Error::Stale)));
        assert!(matches!(pool.get(handle), Err(Error::Stale)));
        assert!(matches!(pool.len_of(handle), Err(Error::Stale)));
        assert!(matches!(pool.replace(handle, b"x"), Err(Error::Stale)));
        assert!(matches!(pool.remove(handle), Err(Error::Stale)));
    }

    fn stale(&mut self, program: &mut Program<'_>) {
        let at = program.below(self.gone.len());
        let any = self.gone.iter().nth(at).copied();
        any.into_iter().chain(self.last_gone).for_each(|handle| self.is_gone(handle));
    }

    fn forged(&mut self, program: &mut Program<'_>) {
        let bit = program.next() % 64;
        let Some((_, handle)) = self.nth(program) else { return };
        let Some(forged) = Handle::from_raw(handle.to_raw() ^ 1 << bit) else { return };
        if self.map.contains_key(&forged) {
            return self.is_object(forged);
        }
        let (pool, mut buf) = (self.pool, vec![0; page()]);
        let is_refused = |error| matches!(error, Error::Stale | Error::Foreign);
        assert!(pool.read(forged, &mut buf).is_err_and(is_refused));
        assert!(pool.remove(forged).is_err_and(is_refused));
        assert!(pool.replace(forged, b"x").is_err_and(is_refused));
    }

    fn hold(&mut self, program: &mut Program<'_>) {
        let Some((_, handle)) = self.nth(program) else { return };
        if self.held.len() < GUARDS_MAX {
            self.held.push((self.pool.get(handle).unwrap(), self.map[&handle].clone()));
        }
    }

    fn compact(&mut self, program: &mut Program<'_>) {
        let (amount, budget) = program.budget();
        // When slots that waited for readers are freed, zspages may become empty without
        // compaction.
        let stats = self.pool.stats();
        let limbo = stats.limbo_slots;
        // `compact` moves objects of retired classes to free slots of other classes, so it may free
        // fewer pages than `freeable`.
        let retired = stats.classes.iter().any(|class| class.is_retired);
        let freeable = self.pool.freeable();
        let done = match self.pool.compact(budget) {
            Ok(done) => done,
            Err(Error::NoBudget) => return assert!(amount == 0 && budget != Budget::All),
            Err(error) => panic!("{error}"),
        };
        if !self.held.is_empty() || limbo > 0 {
            return;
        }
        let least = match budget {
            Budget::All => freeable,
            Budget::Pages(pages) => freeable.min(pages),
            Budget::Time(_) => return,
        };
        assert!(retired || done.freed >= least, "{done:?} of {freeable} for {budget:?}");
        if budget == Budget::All {
            assert_eq!(self.pool.freeable(), Pages::ZERO);
        }
    }

    fn set_limit(&mut self, program: &mut Program<'_>) {
        let limit = match program.next() % 4 {
            0 => Bytes::new(program.below(1 << 12) as u64),
            1 => self.pool.held(),
            2 => Bytes::new(self.pool.held().get() * 3 / 4),
            _ => Bytes::new((256 << 10) + ((program.below(1 << 16) as u64) << 8)),
        };
        match self.pool.set_limit(limit) {
            Ok(()) => self.limit = limit,
            Err(Error::LimitBelowHeld { limit: told, held }) => {
                assert!(told == limit && held > limit, "{held} held, {limit} refused");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.pool.stats().limit_bytes, self.limit.get());
        self.find_evicted();
    }

    fn set_table(&mut self, program: &mut Program<'_>) {
        let table = Table::by_rules(&program.rules()).unwrap();
        match self.pool.set_table(&table) {
            Ok(()) => {
                assert_eq!(self.pool.table().classes(), table.classes());
                self.has_other_table = true;
            }
            // Classes that are being emptied still count, so there may be too many.
            Err(Error::Classes { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self) {
        let stats = self.pool.stats();
        stats.check().unwrap();
        assert_eq!(stats.objects, self.map.len() as u64);
        let table = if self.has_other_table { TABLES } else { 0 };
        let (held, limit) = (self.pool.held(), self.limit);
        assert!(held.get() <= limit.get() + table, "{held} of {limit}");
        assert!(self.held.iter().all(|(guard, bytes)| **guard == **bytes), "held bytes changed");
    }

    fn end(mut self) {
        self.order.iter().for_each(|&handle| self.is_object(handle));
        self.held.clear();
        for handle in self.order.drain(..) {
            self.pool.remove(handle).unwrap();
            self.gone.insert(handle);
        }
        self.gone.iter().for_each(|&handle| self.is_gone(handle));
        self.pool.compact(Budget::All).unwrap();
        let stats = self.pool.stats();
        stats.check().unwrap();
        assert_eq!((stats.objects, stats.stored_bytes, stats.used_pages), (0, 0, 0));
    }
}
