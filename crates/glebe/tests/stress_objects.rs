//! Stresses pools of compressed objects with many threads, and checks every byte.
//!
//! Each `Kind` has a pool. Two *owners* per pool insert, read, replace and remove their own
//! objects, whose contents they know; they also read the other owner's, and try removed handles,
//! which must be refused. A *keeper* per pool compacts, evicts or sweeps. A first-class client
//! takes blocks and checks them for stray writes. Every second forked child makes calls, which must
//! be refused. Signals interrupt all threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::reserve::{LentObjectPool, OnRecall, Request, Reserve, ReserveError};
use glebe::units::{Bytes, Pages};
use glebe::zpool::{AtLimit, Budget, Error, Guard, Handle, ObjectPool};
use glebe_testing::time::Storm;

use glebe_testing::stressed::signals::Signals;
use glebe_testing::stressed::{
    fill, in_child, mix, page_buffer, spawn, version, ChildEnd, Random, Stop,
};

const OWNERS: u64 = 2;
const SLOTS: u64 = 1500;
const RESERVE: Bytes = Bytes::mib(16);
const LIMITS: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(3)];
const BETWEEN_FORKS: Duration = Duration::from_millis(250);
const REMEMBERED: u64 = 64;
const HOLD_MAX: Duration = Duration::from_millis(3);
const USUAL: Duration = Duration::from_millis(1500);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Own,
    Evicting,
    Lost,
    Moved,
}

enum Store {
    Own(Box<ObjectPool>),
    Lent(LentObjectPool),
}

struct Ground {
    kind: Kind,
    store: Store,
    slots: Vec<Slot>,
}

/// Only its owner changes it.
#[derive(Default)]
struct Slot {
    /// The raw handle, or zero.
    handle: AtomicU64,
    /// A read may return versions from `floor` to `newest`.
    floor: AtomicU64,
    newest: AtomicU64,
}

/// Each event must happen, or else the test has tested too little.
#[derive(Default)]
struct Done {
    hits: AtomicU64,
    removes: AtomicU64,
    stale: AtomicU64,
    lost: AtomicU64,
    blocks: AtomicU64,
}

impl Done {
    fn counts(&self) -> [u64; 5] {
        let Self { hits, removes, stale, lost, blocks } = self;
        [hits, removes, stale, lost, blocks].map(|count| count.load(Ordering::Relaxed))
    }

    fn is_met(&self) -> bool {
        self.counts().iter().all(|count| *count > 0)
    }
}

struct Shared {
    reserve: Reserve,
    grounds: Vec<Ground>,
    done: Done,
    stop: AtomicBool,
}

fn more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Store {
    fn new(kind: Kind, reserve: &Reserve) -> Self {
        let lent = |on_recall| {
            let options = reserve.object_pool().staging(Bytes::new(1));
            Self::Lent(options.on_recall(on_recall).build().unwrap())
        };
        let own = |options: glebe::zpool::Options| Self::Own(Box::new(options.build().unwrap()));
        match kind {
            Kind::Own => own(ObjectPool::options().limit(Bytes::mib(64))),
            Kind::Evicting => {
                own(ObjectPool::options().limit(LIMITS[1]).at_limit(AtLimit::EvictOldest))
            }
            Kind::Lost => lent(OnRecall::Discard),
            Kind::Moved => lent(OnRecall::Move),
        }
    }

    fn insert(&self, bytes: &[u8]) -> Result<Handle, Error> {
        match self {
            Self::Own(pool) => pool.insert(bytes),
            Self::Lent(pool) => pool.insert(bytes),
        }
    }

    fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        match self {
            Self::Own(pool) => pool.read(handle, buf).map(Some),
            Self::Lent(pool) => pool.read(handle, buf),
        }
    }

    fn replace(&self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Own(pool) => pool.replace(handle, bytes),
            Self::Lent(pool) => pool.replace(handle, bytes),
        }
    }

    fn remove(&self, handle: Handle) -> Result<(), Error> {
        match self {
            Self::Own(pool) => pool.remove(handle),
            Self::Lent(pool) => pool.remove(handle),
        }
    }

    fn compact(&self, budget: Budget) -> Result<(), Error> {
        match self {
            Self::Own(pool) => pool.compact(budget).map(drop),
            Self::Lent(pool) => pool.compact(budget).map(drop),
        }
    }

    fn objects(&self) -> u64 {
        let (checked, objects) = match self {
            Self::Own(pool) => (pool.stats().check(), pool.stats().objects),
            Self::Lent(pool) => (pool.stats().check(), pool.stats().objects.objects),
        };
        checked.unwrap();
        objects
    }
}

/// Some versions compress well, some do not.
fn bytes_of(at: u64, version: u64, bytes: &mut Vec<u8>) {
    let seed = mix(mix(at) ^ version);
    let page = page_buffer().len();
    // With few lengths, the pool soon reuses a removed object's slot.
    let len = [48, 320, 1000, 1360, 2504, page][(seed % 6) as usize];
    bytes.clear();
    bytes.resize(len, 0);
    fill(bytes, at, version);
    if seed & 64 != 0 {
        let (first, rest) = bytes.split_at_mut(16);
        rest.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&first[8..]));
    }
}

fn version_of(at: u64, bytes: &[u8], expected: &mut Vec<u8>) -> Option<u64> {
    let version = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    bytes_of(at, version, expected);
    (bytes == expected).then_some(version)
}

struct Owner<'a> {
    ground: &'a Ground,
    done: &'a Done,
    first: u64,
    random: Random,
    removed: Vec<Handle>,
    /// A borrowed object, its index, and the least version that it may have.
    lent: Option<(Guard<'a>, u64, u64)>,
    bytes: Vec<u8>,
    expected: Vec<u8>,
    buf: Vec<u8>,
}

impl<'a> Owner<'a> {
    fn new(ground: &'a Ground, done: &'a Done, id: u64) -> Self {
        let random = Random((id << 8 | ground.kind as u64) << 32);
        let (bytes, expected, buf) = (Vec::new(), Vec::new(), page_buffer());
        let (first, removed, lent) = (id * SLOTS, Vec::new(), None);
        Self { ground, done, first, random, removed, lent, bytes, expected, buf }
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

    fn judge(&mut self, at: u64, floor: u64, bytes: &[u8]) {
        let newest = self.slot(at).newest.load(Ordering::SeqCst);
        let version = version_of(at, bytes, &mut self.expected);
        let kind = self.ground.kind;
        let is_right = version.is_some_and(|version| (floor..=newest).contains(&version));
        assert!(is_right, "{kind:?}, object {at}: {version:?} is not in {floor}..={newest}");
        more(&self.done.hits);
    }

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
            }
            Err(Error::Stale) => self.gone(at),
            // A block and the other pool may hold all pages.
            Err(Error::Full { .. }) if matches!(self.ground.store, Store::Lent(_)) => {}
            Err(e) => panic!("insert or replace: {e}"),
        }
    }

    /// Records that the pool lost an object which its owner did not remove.
    fn gone(&mut self, at: u64) {
        assert!(self.ground.kind != Kind::Own, "object {at} has vanished");
        more(&self.done.lost);
        self.slot(at).handle.store(0, Ordering::SeqCst);
    }

    fn remove(&mut self, at: u64) {
        let Some(handle) = self.handle(at) else { return };
        match self.ground.store.remove(handle) {
            Ok(()) => {
                more(&self.done.removes);
                self.slot(at).handle.store(0, Ordering::SeqCst);
            }
            Err(Error::Stale) => self.gone(at),
            Err(e) => panic!("remove: {e}"),
        }
        if (self.removed.len() as u64) < REMEMBERED {
            self.removed.push(handle);
        } else {
            let nth = self.random.below(REMEMBERED) as usize;
            self.removed[nth] = handle;
        }
    }

    fn try_removed(&mut self) {
        let nth = self.random.below(self.removed.len() as u64) as usize;
        let Some(handle) = self.removed.get(nth).copied() else { return };
        let store = &self.ground.store;
        let tried = match self.random.below(3) {
            0 => store.read(handle, &mut self.buf).map(drop),
            1 => store.replace(handle, b"of nobody"),
            _ => store.remove(handle),
        };
        let is_refused = matches!(tried, Err(Error::Stale | Error::Full { .. }));
        assert!(is_refused, "the handle of a removed object: {tried:?}");
        more(&self.done.stale);
    }

    fn read(&mut self, at: u64) {
        let floor = self.slot(at).floor.load(Ordering::SeqCst);
        let Some(handle) = self.handle(at) else { return };
        let mut buf = std::mem::take(&mut self.buf);
        let own = (self.first..self.first + SLOTS).contains(&at);
        match self.ground.store.read(handle, &mut buf) {
            Ok(Some(len)) => self.judge(at, floor, &buf[..len]),
            Ok(None) | Err(Error::Stale) if own => self.gone(at),
            // The other owner may have removed the object.
            Ok(None) | Err(Error::Stale) => {}
            Err(e) => panic!("read: {e}"),
        }
        self.buf = buf;
    }

    fn borrow(&mut self) {
        if let Some((guard, at, floor)) = self.lent.take() {
            return self.judge(at, floor, &guard);
        }
        let Store::Own(pool) = &self.ground.store else { return };
        let at = self.random.below(OWNERS * SLOTS);
        let floor = self.slot(at).floor.load(Ordering::SeqCst);
        match self.handle(at).map(|handle| pool.get(handle)) {
            Some(Ok(guard)) => self.lent = Some((guard, at, floor)),
            None | Some(Err(Error::Stale)) => {}
            Some(Err(e)) => panic!("get: {e}"),
        }
    }

    fn finish(mut self) {
        self.lent = None;
        for at in self.first..self.first + SLOTS {
            self.read(at);
            self.remove(at);
        }
    }
}

fn keep(shared: &Shared, ground: &Ground) {
    let mut random = Random(1 << 40 | ground.kind as u64);
    let budgets =
        [Budget::Pages(Pages::new(4)), Budget::Time(Duration::from_millis(1)), Budget::All];
    while !shared.stop.load(Ordering::Relaxed) {
        random.rest(HOLD_MAX);
        let budget = budgets[random.below(3) as usize];
        let kept = match (&ground.store, random.below(3)) {
            (store, 0) => store.compact(budget),
            (Store::Own(pool), _) if ground.kind == Kind::Evicting => {
                pool.set_limit(LIMITS[random.below(2) as usize])
            }
            (Store::Own(_), _) => Ok(()),
            (Store::Lent(pool), _) => pool.sweep(random.below(64)),
        };
        kept.unwrap();
    }
}

fn hold_blocks(shared: &Shared) {
    let mut random = Random(1 << 48);
    let most = (shared.reserve.len().get() / 2).max(1);
    while !shared.stop.load(Ordering::Relaxed) {
        let order = random.below(u64::from(most.ilog2()) + 1);
        let pages = Pages::new(1 + random.below(1 << order));
        let mut block = match shared.reserve.alloc(Request::new(pages).any()) {
            Ok(block) => block,
            Err(ReserveError::NoRun { .. }) => continue,
            Err(e) => panic!("alloc: {e}"),
        };
        let number = shared.done.blocks.fetch_add(1, Ordering::Relaxed) + 1;
        fill(block.bytes_mut().unwrap(), !0, number);
        random.rest(HOLD_MAX);
        let held = version(block.bytes().unwrap(), !0);
        assert_eq!(held, Some(number), "a stray write into {:?}", block.extent());
    }
}

fn fork_while(shared: &Shared, goes_on: impl Fn() -> bool) {
    let mut forks = 0;
    while goes_on() || forks < 2 {
        thread::sleep(BETWEEN_FORKS);
        forks += 1;
        // Allocates before the fork, because the allocator may stay locked in the child.
        let mut page = page_buffer();
        let ended = in_child(|| {
            if forks % 2 == 0 {
                let stores = shared.grounds.iter().map(|ground| &ground.store);
                return stores.fold(0, |bits, store| bits | not_refused(store, &mut page));
            }
            thread::sleep(BETWEEN_FORKS / 10);
            0
        });
        assert_eq!(ended, ChildEnd::Exit(0), "what the child was to be refused, by bits");
    }
}

fn not_refused(store: &Store, page: &mut [u8]) -> u8 {
    let Some(handle) = Handle::from_raw(1) else { return 1 };
    let refused = [
        matches!(store.insert(b"a child's"), Err(Error::Forked)),
        matches!(store.read(handle, page), Err(Error::Forked)),
        matches!(store.replace(handle, b"a child's"), Err(Error::Forked)),
        matches!(store.remove(handle), Err(Error::Forked)),
        matches!(store.compact(Budget::All), Err(Error::Forked)),
    ];
    refused.iter().enumerate().map(|(bit, refused)| u8::from(!refused) << bit).sum()
}

#[test]
fn pools_of_every_kind_side_by_side() {
    glebe_testing::alone!();
    let contig = Contig::options().source(Source::Plain).build(RESERVE).unwrap();
    let reserve = Reserve::options().build_on(contig).unwrap();
    let grounds = [Kind::Own, Kind::Evicting, Kind::Lost, Kind::Moved].map(|kind| {
        let slots = (0..OWNERS * SLOTS).map(|_| Slot::default()).collect();
        Ground { kind, store: Store::new(kind, &reserve), slots }
    });
    let (done, stop) = (Done::default(), AtomicBool::new(false));
    let shared = &Shared { reserve, grounds: grounds.into(), done, stop };
    let signals = Signals::start(Duration::from_millis(1));
    let storm = Storm::begin(USUAL);
    thread::scope(|scope| {
        spawn(scope, &shared.stop, || hold_blocks(shared));
        for ground in &shared.grounds {
            spawn(scope, &shared.stop, move || keep(shared, ground));
            for id in 0..OWNERS {
                spawn(scope, &shared.stop, move || {
                    let mut owner = Owner::new(ground, &shared.done, id);
                    while !shared.stop.load(Ordering::Relaxed) {
                        owner.step();
                    }
                    owner.finish();
                });
            }
        }
        let _stop = Stop(&shared.stop);
        fork_while(shared, || storm.goes_on(|| shared.done.is_met()));
    });
    for ground in &shared.grounds {
        assert_eq!(ground.store.objects(), 0, "objects left in {:?}", ground.kind);
    }
    assert!(signals.came() > 100, "{} signals", signals.came());
    drop(signals);
    println!("hits, removes, stale, lost, blocks: {:?}", shared.done.counts());
    assert!(shared.done.is_met(), "a load that met nothing");
}

#[test]
fn bytes_of_another_object_or_version_are_seen() {
    let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
    for version in 0..64 {
        bytes_of(3, version, &mut bytes);
        assert_eq!(version_of(3, &bytes, &mut scratch), Some(version));
        assert_eq!(version_of(4, &bytes, &mut scratch), None);
        let at = bytes.len() - 1;
        assert_eq!(version_of(3, &bytes[..at], &mut scratch), None);
        bytes[at] ^= 1;
        assert_eq!(version_of(3, &bytes, &mut scratch), None);
    }
}
