//! [`run`]: pools of compressed objects from many threads at once, and every byte looked at.
//!
//! Pools of every `Kind` live side by side: two of ordinary memory, one of which evicts at its
//! limit, and two on pages lent by a reserve, one of which moves what first class takes. Each has
//! two *owners*, which insert, read, replace and remove objects of their own, and know what each
//! must hold; they also read each other's objects, and handles of removed ones, which must name
//! nothing. A *keeper* of each pool compacts, recompresses, evicts or sweeps. First class takes
//! blocks of the reserve meanwhile and looks for stray writes. Now and then a child is forked: one
//! calls and must be refused everything, the next lives a while and calls nothing. After some
//! seconds everything is dropped and made anew; by then the statistics must add up, and the process
//! must hold no more than before. Seeds are fixed; the interleaving is not.
//! Unit: seconds in, counts out.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use glebe::reserve::{Error as ReserveError, ObjectPool, OnRecall, Request, Reserve};
use glebe::units::{Bytes, Pages};
use glebe::zpool::{AtLimit, Budget, Error as PoolError, Guard, Handle, Pool, Zstd};

use super::footing::Footing;
use super::fork::{in_child, End};
use super::keyed::{mix, Random};
use super::requests::{ask, Faults, Marking};
use super::{affordable, map, page_buffer, Error};
use crate::clock;
use crate::interrupt::Stop;
use crate::progress::Progress;
use crate::signals::{self, Signals};

const OWNERS: u64 = 2;
/// Objects that an owner has at most.
const SLOTS: u64 = 1500;
const RESERVE: Bytes = Bytes::mib(16);
/// Of the pool that evicts: between the two, changed by its keeper.
const LIMITS: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(3)];
/// How long one set of pools lives, at most.
const ROUND: Duration = Duration::from_secs(10);
const FORK_EVERY: Duration = Duration::from_millis(250);
/// Removed handles that an owner goes on trying.
const REMEMBERED: u64 = 64;
const HOLD_US_MAX: u64 = 3000;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long.
    pub time: Duration,
    /// Signals to each thread a second.
    pub signal_hz: Option<u32>,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Objects inserted.
    pub inserts: u64,
    /// Objects replaced.
    pub replaces: u64,
    /// Objects removed.
    pub removes: u64,
    /// Objects read and compared.
    pub hits: u64,
    /// Objects that were evicted, or lost with their pages.
    pub lost: u64,
    /// Handles of removed objects that named nothing.
    pub stale: u64,
    /// Inserts and replaces without room, which is no fault while first class holds blocks.
    pub refused: u64,
    /// Objects that compaction moved.
    pub compacted: u64,
    /// Objects that recompression made smaller.
    pub recompressed: u64,
    /// Blocks held and looked at.
    pub blocks: u64,
    /// Sets of pools made and dropped.
    pub rounds: u64,
    /// Children forked.
    pub forks: u64,
    /// Signals that came, if any were asked for.
    pub signals: Option<u64>,
    /// Faults of blocks.
    pub faults: Faults,
    /// Objects with other bytes than were put.
    pub wrong_objects: u64,
    /// Objects older than one that was complete before.
    pub stale_objects: u64,
    /// Handles of removed objects that named something.
    pub revived: u64,
    /// Objects that were gone from pools that lose none.
    pub vanished: u64,
    /// Children that were not refused, or did not end.
    pub wrong_children: u64,
    /// Calls that failed without a reason to.
    pub errors: Vec<String>,
}

impl Outcome {
    /// Whether nothing was wrong and something of everything was done.
    #[must_use]
    pub fn passed(&self) -> bool {
        let none = self.wrong().iter().all(|(_, count)| *count == 0);
        let done = [self.hits, self.removes, self.stale, self.lost, self.blocks, self.forks];
        none && done.iter().all(|count| *count > 0) && self.signals != Some(0)
    }

    /// What must be 0, by name.
    fn wrong(&self) -> [(&'static str, u64); 8] {
        [
            ("wrong objects", self.wrong_objects),
            ("stale objects", self.stale_objects),
            ("revived", self.revived),
            ("vanished", self.vanished),
            ("stray bytes", self.faults.stray_writes),
            ("not contiguous", self.faults.not_contiguous),
            ("wrong children", self.wrong_children),
            ("failed calls", self.errors.len() as u64 + self.faults.failures),
        ]
    }

    fn add(&mut self, other: Self) {
        self.inserts += other.inserts;
        self.replaces += other.replaces;
        self.removes += other.removes;
        self.hits += other.hits;
        self.lost += other.lost;
        self.stale += other.stale;
        self.refused += other.refused;
        self.compacted += other.compacted;
        self.recompressed += other.recompressed;
        self.blocks += other.blocks;
        self.rounds += other.rounds;
        self.forks += other.forks;
        self.faults.add(other.faults);
        self.wrong_objects += other.wrong_objects;
        self.stale_objects += other.stale_objects;
        self.revived += other.revived;
        self.vanished += other.vanished;
        self.wrong_children += other.wrong_children;
        self.errors.extend(other.errors);
    }

    fn error(&mut self, what: &str, why: impl fmt::Display) {
        const KEPT: usize = 100;
        if self.errors.len() < KEPT {
            self.errors.push(format!("{what}: {why}"));
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inserts, replaces, removes, hits, lost, refused, .. } = self;
        writeln!(f, "owners         {inserts} inserts, {replaces} replaces, {removes} removes")?;
        writeln!(f, "read           {hits} objects; {lost} were lost or evicted")?;
        writeln!(f, "refused        {refused} for want of room")?;
        writeln!(f, "removed        {} handles tried again", self.stale)?;
        writeln!(f, "compacted      {} objects", self.compacted)?;
        writeln!(f, "recompressed   {} objects", self.recompressed)?;
        writeln!(f, "first class    {} blocks", self.blocks)?;
        writeln!(f, "pools          {} times made and dropped", self.rounds)?;
        writeln!(f, "forks          {}", self.forks)?;
        signals::write(f, self.signals)?;
        for (name, count) in self.wrong() {
            writeln!(f, "{name:14} {count}{}", if count == 0 { "" } else { "  WRONG" })?;
        }
        for error in self.errors.iter().take(5) {
            writeln!(f, "  {error}")?;
        }
        Ok(())
    }
}

/// Runs for the time given, on one set of pools after another.
///
/// # Errors
/// If there is no reserve or no pool; what goes wrong later is in the outcome.
pub fn run(options: Options) -> Result<Outcome, Error> {
    let signals = Signals::start_if(options.signal_hz)?;
    let mut progress = Progress::new("stress", options.time.as_millis() as u64);
    let start = clock::wall();
    let mut outcome = Outcome::default();
    let mut footing = None;
    loop {
        let gone = clock::wall().saturating_sub(start);
        if outcome.rounds > 0 && (gone >= options.time || !outcome.errors.is_empty()) {
            break;
        }
        let time = ROUND.min(options.time.saturating_sub(gone));
        let round = round(time, |within| progress.update((gone + within).as_millis() as u64))?;
        outcome.add(round);
        // What the first round leaves is what the process keeps for itself.
        outcome.errors.extend(footing.get_or_insert_with(Footing::now).left());
    }
    progress.finish();
    outcome.signals = signals.map(|signals| signals.came());
    Ok(outcome)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Own,
    Evicting,
    Lost,
    Moved,
}

enum Store {
    Own(Box<Pool>),
    Lent(ObjectPool),
}

/// One pool, and what all its threads know of it.
struct Ground {
    kind: Kind,
    store: Store,
    slots: Vec<Slot>,
}

/// One object. Only its owner changes it.
#[derive(Default)]
struct Slot {
    /// Zero: there is none.
    handle: AtomicU64,
    /// Versions from `floor` to `newest` may be read.
    floor: AtomicU64,
    newest: AtomicU64,
}

struct Shared {
    reserve: Reserve,
    grounds: Vec<Ground>,
    stop: AtomicBool,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Own, Self::Evicting, Self::Lost, Self::Moved];

    /// Whether objects may be gone that nobody removed.
    fn loses(self) -> bool {
        self != Self::Own
    }
}

impl Store {
    fn new(kind: Kind, reserve: &Reserve) -> Result<Self, PoolError> {
        let lent = |on_recall| {
            let options = reserve.object_pool().staging(Bytes::new(1));
            Ok(Self::Lent(options.on_recall(on_recall).build()?))
        };
        let evicting = Pool::options().limit(LIMITS[1]).at_limit(AtLimit::EvictOldest);
        match kind {
            Kind::Own => Ok(Self::Own(Box::new(Pool::options().limit(Bytes::mib(64)).build()?))),
            Kind::Evicting => Ok(Self::Own(Box::new(evicting.build()?))),
            Kind::Lost => lent(OnRecall::Discard),
            Kind::Moved => lent(OnRecall::Move),
        }
    }

    fn insert(&self, bytes: &[u8]) -> Result<Handle, PoolError> {
        match self {
            Self::Own(pool) => pool.insert(bytes),
            Self::Lent(pool) => pool.insert(bytes),
        }
    }

    /// `None`: lost.
    fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<Option<usize>, PoolError> {
        match self {
            Self::Own(pool) => pool.read(handle, buf).map(Some),
            Self::Lent(pool) => pool.read(handle, buf),
        }
    }

    fn replace(&self, handle: Handle, bytes: &[u8]) -> Result<(), PoolError> {
        match self {
            Self::Own(pool) => pool.replace(handle, bytes),
            Self::Lent(pool) => pool.replace(handle, bytes),
        }
    }

    fn remove(&self, handle: Handle) -> Result<(), PoolError> {
        match self {
            Self::Own(pool) => pool.remove(handle),
            Self::Lent(pool) => pool.remove(handle),
        }
    }

    fn compact(&self, budget: Budget) -> Result<u64, PoolError> {
        Ok(match self {
            Self::Own(pool) => pool.compact(budget)?.moved,
            Self::Lent(pool) => pool.compact(budget)?.moved,
        })
    }

    /// How many objects there are, if the statistics add up.
    fn objects(&self) -> Result<u64, String> {
        match self {
            Self::Own(pool) => pool.stats().check().map(|()| pool.stats().objects),
            Self::Lent(pool) => pool.stats().check().map(|()| pool.stats().objects.objects),
        }
    }
}

/// Makes the bytes of a version of an object: its length and all that is in it follow from that.
/// Some can be compressed well, some not at all.
fn bytes_of(at: u64, version: u64, bytes: &mut Vec<u8>) {
    let seed = mix(mix(at) ^ version);
    let words = page_buffer().len() as u64 / 8;
    // Few lengths, so that slots are soon used again, and a page now and then.
    let words = [6, 40, 125, 170, 313, words][(seed % 6) as usize];
    let period = if seed & 64 == 0 { words } else { 4 };
    bytes.clear();
    bytes.extend(version.to_ne_bytes());
    bytes.extend((1..words).flat_map(|word| mix(seed ^ (word % period)).to_ne_bytes()));
}

impl Ground {
    /// The version that `bytes` are; `None` if they are not wholly one of the object's.
    fn version(at: u64, bytes: &[u8], expected: &mut Vec<u8>) -> Option<u64> {
        let version = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
        bytes_of(at, version, expected);
        (bytes == expected).then_some(version)
    }

    /// Judges bytes that were read after the slot's versions began at `floor`.
    fn judge(&self, at: u64, floor: u64, bytes: &[u8], own: &mut Own<'_>) {
        let newest = self.slots[at as usize].newest.load(Ordering::SeqCst);
        match Self::version(at, bytes, &mut own.expected) {
            Some(version) if version < floor => own.out.stale_objects += 1,
            Some(version) if version <= newest => own.out.hits += 1,
            _ => own.out.wrong_objects += 1,
        }
    }
}

/// An owner: whom it belongs to and what it has done.
struct Own<'a> {
    ground: &'a Ground,
    first: u64,
    random: Random,
    removed: Vec<Handle>,
    /// Bytes lent for a while, whose they are and since which version.
    lent: Option<(Guard<'a>, u64, u64)>,
    bytes: Vec<u8>,
    expected: Vec<u8>,
    buf: Vec<u8>,
    out: Outcome,
}

impl<'a> Own<'a> {
    fn new(ground: &'a Ground, id: u64) -> Self {
        Self {
            ground,
            first: id * SLOTS,
            random: Random::new((id << 8 | ground.kind as u64) << 32),
            removed: Vec::new(),
            lent: None,
            bytes: Vec::new(),
            expected: Vec::new(),
            buf: page_buffer(),
            out: Outcome::default(),
        }
    }

    fn slot(&self, at: u64) -> &'a Slot {
        &self.ground.slots[at as usize]
    }

    fn handle(&self, at: u64) -> Option<Handle> {
        Handle::from_raw(self.slot(at).handle.load(Ordering::SeqCst))
    }

    fn step(&mut self) {
        let at = self.first + self.random.below(SLOTS);
        match self.random.below(16) {
            0..=4 => self.put(at),
            5 => self.remove(at),
            6 => self.try_removed(),
            7 => self.borrow(),
            _ => {
                let any = self.random.below(OWNERS * SLOTS);
                self.read(any);
            }
        }
    }

    /// Inserts an object, or replaces it.
    fn put(&mut self, at: u64) {
        let (slot, old) = (self.slot(at), self.handle(at));
        let next = slot.newest.load(Ordering::Relaxed) + 1;
        slot.newest.store(next, Ordering::SeqCst);
        bytes_of(at, next, &mut self.bytes);
        let put = match old {
            None => self.ground.store.insert(&self.bytes),
            Some(old) => self.ground.store.replace(old, &self.bytes).map(|()| old),
        };
        match put {
            Ok(handle) => {
                slot.floor.store(next, Ordering::SeqCst);
                slot.handle.store(handle.to_raw(), Ordering::SeqCst);
                *(if old.is_none() { &mut self.out.inserts } else { &mut self.out.replaces }) += 1;
            }
            Err(PoolError::Stale) => self.gone(at),
            Err(PoolError::Full { .. }) if matches!(self.ground.store, Store::Lent(_)) => {
                self.out.refused += 1;
            }
            Err(e) => self.out.error("insert or replace", e),
        }
    }

    /// An object was not there that this thread has not removed.
    fn gone(&mut self, at: u64) {
        match self.ground.kind.loses() {
            true => self.out.lost += 1,
            false => self.out.vanished += 1,
        }
        self.slot(at).handle.store(0, Ordering::SeqCst);
    }

    fn remove(&mut self, at: u64) {
        let Some(handle) = self.handle(at) else { return };
        match self.ground.store.remove(handle) {
            Ok(()) => {
                self.out.removes += 1;
                self.slot(at).handle.store(0, Ordering::SeqCst);
            }
            Err(PoolError::Stale) => self.gone(at),
            Err(e) => self.out.error("remove", e),
        }
        if (self.removed.len() as u64) < REMEMBERED {
            self.removed.push(handle);
        } else {
            let nth = self.random.below(REMEMBERED) as usize;
            self.removed[nth] = handle;
        }
    }

    /// Uses the handle of a removed object, in each way there is.
    fn try_removed(&mut self) {
        let nth = self.random.below(self.removed.len() as u64) as usize;
        let Some(handle) = self.removed.get(nth).copied() else { return };
        let store = &self.ground.store;
        let tried = match self.random.below(3) {
            0 => store.read(handle, &mut self.buf).map(drop),
            1 => store.replace(handle, b"of nobody"),
            _ => store.remove(handle),
        };
        match tried {
            Err(PoolError::Stale | PoolError::Full { .. }) => self.out.stale += 1,
            Ok(()) => self.out.revived += 1,
            Err(e) => self.out.error("a removed handle", e),
        }
    }

    fn read(&mut self, at: u64) {
        let floor = self.slot(at).floor.load(Ordering::SeqCst);
        let Some(handle) = self.handle(at) else { return };
        let mut buf = std::mem::take(&mut self.buf);
        let own = (self.first..self.first + SLOTS).contains(&at);
        match self.ground.store.read(handle, &mut buf) {
            Ok(Some(len)) => self.ground.judge(at, floor, &buf[..len], self),
            Ok(None) | Err(PoolError::Stale) if own => self.gone(at),
            // Its owner may have removed it meanwhile.
            Ok(None) | Err(PoolError::Stale) => {}
            Err(e) => self.out.error("read", e),
        }
        self.buf = buf;
    }

    /// Borrows an object's bytes, or looks at those that it borrowed last and returns them.
    fn borrow(&mut self) {
        if let Some((guard, at, floor)) = self.lent.take() {
            return self.ground.judge(at, floor, &guard, self);
        }
        let Store::Own(pool) = &self.ground.store else { return };
        let at = self.random.below(OWNERS * SLOTS);
        let floor = self.slot(at).floor.load(Ordering::SeqCst);
        match self.handle(at).map(|handle| pool.get(handle)) {
            Some(Ok(guard)) => self.lent = Some((guard, at, floor)),
            None | Some(Err(PoolError::Stale)) => {}
            Some(Err(e)) => self.out.error("get", e),
        }
    }

    /// At the end: reads and removes everything.
    fn finish(mut self) -> Outcome {
        self.lent = None;
        for at in self.first..self.first + SLOTS {
            self.read(at);
            self.remove(at);
        }
        self.out
    }
}

/// Compacts, recompresses, evicts or sweeps, in small parts and in one go.
fn keep(shared: &Shared, ground: &Ground) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(1 << 40 | ground.kind as u64);
    let budgets =
        [Budget::Pages(Pages::new(4)), Budget::Time(Duration::from_millis(1)), Budget::All];
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(random.below(HOLD_US_MAX)));
        let budget = budgets[random.below(3) as usize];
        let done = match (&ground.store, random.below(3)) {
            (store, 0) => store.compact(budget).map(|moved| out.compacted += moved),
            (Store::Own(pool), 1) => {
                let done = pool.recompress(&Zstd::default(), budget);
                done.map(|done| out.recompressed += done.objects)
            }
            (Store::Own(pool), _) if ground.kind == Kind::Evicting => {
                pool.set_limit(LIMITS[random.below(2) as usize])
            }
            (Store::Own(_), _) => Ok(()),
            (Store::Lent(pool), _) => pool.sweep(random.below(64)),
        };
        if let Err(e) = done {
            out.error("upkeep", e);
        }
    }
    out
}

/// Takes blocks of the reserve, and looks for stray writes.
fn hold_blocks(shared: &Shared) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(1 << 48);
    let most = (shared.reserve.len().get() / 2).max(1);
    while !shared.stop.load(Ordering::Relaxed) {
        let order = random.below(u64::from(most.ilog2()) + 1);
        let pages = Pages::new(1 + random.below(1 << order));
        match ask(&shared.reserve, Duration::ZERO, Request::new(pages), false) {
            Ok(mut held) => {
                out.blocks += 1;
                out.faults.add(held.mark(Marking::Whole));
                std::thread::sleep(Duration::from_micros(random.below(HOLD_US_MAX)));
                out.faults.add(held.check(Marking::Whole));
            }
            Err(ReserveError::NoRun { .. }) => {}
            Err(e) => out.error("alloc", e),
        }
    }
    out
}

/// Makes the pools, uses them for a while, and drops them.
fn round(time: Duration, progress: impl FnMut(Duration)) -> Result<Outcome, Error> {
    let reserve = map(affordable(RESERVE, 4)?, Reserve::builder())?;
    let slots = || (0..OWNERS * SLOTS).map(|_| Slot::default()).collect();
    let ground = |kind| Ok(Ground { kind, store: Store::new(kind, &reserve)?, slots: slots() });
    let grounds = Kind::ALL.into_iter().map(ground).collect::<Result<_, PoolError>>()?;
    let shared = Shared { grounds, reserve, stop: AtomicBool::new(false) };
    let mut outcome = Outcome { rounds: 1, ..Outcome::default() };
    std::thread::scope(|scope| {
        let shared = &shared;
        let _stop = Stop(&shared.stop);
        let mut threads = vec![scope.spawn(|| hold_blocks(shared))];
        for ground in &shared.grounds {
            threads.push(scope.spawn(move || keep(shared, ground)));
            for id in 0..OWNERS {
                threads.push(scope.spawn(move || {
                    let mut own = Own::new(ground, id);
                    while !shared.stop.load(Ordering::Relaxed) {
                        own.step();
                    }
                    own.finish()
                }));
            }
        }
        outcome.add(fork_until(shared, time, progress));
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(part) => outcome.add(part),
                Err(_) => outcome.error("a thread", "panicked"),
            }
        }
    });
    for ground in &shared.grounds {
        match ground.store.objects() {
            Ok(0) => {}
            Ok(left) => outcome.error("objects left in a pool", format!("{left}")),
            Err(text) => outcome.error("statistics", text),
        }
    }
    Ok(outcome)
}

/// Forks now and then until the time is over.
fn fork_until(shared: &Shared, time: Duration, mut progress: impl FnMut(Duration)) -> Outcome {
    let mut out = Outcome::default();
    let start = clock::wall();
    loop {
        let gone = clock::wall().saturating_sub(start);
        progress(gone);
        if gone >= time && out.forks > 1 {
            break;
        }
        std::thread::sleep(FORK_EVERY.min(time.saturating_sub(gone)));
        out.forks += 1;
        // Before the fork: in the child the allocator's locks may be held by nobody.
        let mut page = page_buffer();
        let calls = out.forks % 2 == 0;
        let child = in_child(|| {
            if calls {
                return shared
                    .grounds
                    .iter()
                    .fold(0, |bits, ground| bits | not_refused(&ground.store, &mut page));
            }
            std::thread::sleep(FORK_EVERY / 10);
            0
        });
        match child {
            Ok(End::Exit(0)) => {}
            Ok(end) => {
                out.wrong_children += 1;
                out.error("a child", format!("ended with {end}"));
            }
            Err(e) => out.error("fork", e),
        }
    }
    out
}

/// In a child: one bit for each call that was not refused as it should be.
fn not_refused(store: &Store, page: &mut [u8]) -> u8 {
    let Some(handle) = Handle::from_raw(1) else { return 1 };
    let refused = [
        matches!(store.insert(b"a child's"), Err(PoolError::Forked)),
        matches!(store.read(handle, page), Err(PoolError::Forked)),
        matches!(store.replace(handle, b"a child's"), Err(PoolError::Forked)),
        matches!(store.remove(handle), Err(PoolError::Forked)),
        matches!(store.compact(Budget::All), Err(PoolError::Forked)),
    ];
    refused.iter().enumerate().map(|(bit, refused)| u8::from(!refused) << bit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done() -> Outcome {
        Outcome {
            hits: 1,
            removes: 1,
            stale: 1,
            lost: 1,
            blocks: 1,
            forks: 1,
            ..Outcome::default()
        }
    }

    #[test]
    fn each_fault_fails_the_stress() {
        assert!(done().passed() && !Outcome::default().passed());
        type Change = fn(&mut Outcome);
        let changes: [Change; 9] = [
            |out| out.wrong_objects = 1,
            |out| out.stale_objects = 1,
            |out| out.revived = 1,
            |out| out.vanished = 1,
            |out| out.faults.stray_writes = 1,
            |out| out.faults.failures = 1,
            |out| out.wrong_children = 1,
            |out| out.error("read", "refused"),
            |out| out.signals = Some(0),
        ];
        for change in changes {
            let mut changed = done();
            change(&mut changed);
            assert!(!changed.passed() && changed.to_string().contains("WRONG"), "{changed}");
        }
    }

    #[test]
    fn bytes_of_another_object_or_version_are_seen() {
        let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
        for version in 0..64 {
            bytes_of(3, version, &mut bytes);
            assert!(bytes.len() <= page_buffer().len());
            assert_eq!(Ground::version(3, &bytes, &mut scratch), Some(version));
            assert_eq!(Ground::version(4, &bytes, &mut scratch), None);
            let at = bytes.len() - 1;
            assert_eq!(Ground::version(3, &bytes[..at], &mut scratch), None);
            bytes[at] ^= 1;
            assert_eq!(Ground::version(3, &bytes, &mut scratch), None);
        }
    }
}
