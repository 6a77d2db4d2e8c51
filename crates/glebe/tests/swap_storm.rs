//! Stresses all of swap at once: a [`Store`] and an [`Area`] on one reserve, and a [`Region`]
//! beside them. Two threads use all three, while the test recalls memory, changes policies and
//! budgets, and makes reads and writes of the files fail. The test repeats this in child processes
//! (users), and kills them.
//!
//! Each thread remembers what it wrote; the test's process remembers what a user wrote. Under each
//! policy, no byte is wrong, no write is lost, and no call waits forever.
#![allow(unsafe_code)] // Safety: calls and touches use only what the test owns.

mod oracle;
mod user;

use std::collections::HashMap;
use std::fs;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::swap::cache::{Area, SwapCache};
use glebe::swap::{Key, Region, Store, SwapError};
use glebe::units::{Bytes, Pages};
use glebe_testing::process::child_of;
use glebe_testing::time::{self, slowed, storm};
use glebe_testing::Scratch;

use crate::swap_days::descriptor::{descriptors_in, is_refusal, Descriptor, Device};
use glebe_testing::stressed::{mix, Stop};

const THREADS: u64 = 2;
/// Pages that a thread owns, in area and region each.
const PAGES: u64 = 400;
const OBJECTS: usize = 100;
const SHARED: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(60);
const USUAL: Duration = Duration::from_secs(3);
/// Environment variables of a child that the test kills: its directory, the descriptors by which
/// its threads get commands, and its policy.
const VICTIM: &str = "GLEBE_SWAP_STORM_VICTIM";
const TALKS: &str = "GLEBE_SWAP_STORM_TALKS";
const POLICY: &str = "GLEBE_SWAP_STORM_POLICY";

/// A choice of the area's limits for unsaved pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    WriteThrough,
    WriteBack,
    PutBack,
    Changing,
}

impl Policy {
    const ALL: [Self; 4] = [Self::WriteThrough, Self::WriteBack, Self::PutBack, Self::Changing];

    fn numbers(self, rng: &mut Rng) -> [Bytes; 2] {
        let any = |rng: &mut Rng, of: [u64; 3]| of[rng.below(3) as usize];
        let numbers = match self {
            Self::WriteThrough => [0, 0],
            Self::WriteBack => [any(rng, [20_000, 300_000, 1 << 20]), 0],
            Self::PutBack => [0, any(rng, [100_000, 400_000, 1 << 20])],
            Self::Changing => [any(rng, [0, 20_000, 1 << 20]), any(rng, [0, 100_000, 1 << 20])],
        };
        numbers.map(Bytes::new)
    }
}

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn pages(count: u64) -> Bytes {
    Pages::new(count).bytes(page_size())
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = mix(self.0);
        (self.0 >> 20) % end
    }
}

fn bytes_of(version: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| match version % 4 {
        0 => version,
        1 => mix(version << 24 | at),
        _ if at % 2 == 0 => mix(version << 24 | at),
        _ => version,
    };
    (0..len.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes()).take(len).collect()
}

struct Storm {
    reserve: Reserve,
    store: Store,
    area: Area,
    /// `None` without userfaultfd(2).
    region: Option<Region>,
    shared: Vec<Key>,
    /// Files of `store` and `area`, whose I/O `disturb` makes fail. The region's file is left out,
    /// because a touch returns no error.
    files: Vec<Descriptor>,
    stop: AtomicBool,
}

/// Returns `None` for a temporary refusal.
fn kept<T>(result: Result<T, SwapError>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(SwapError::Os(error)) => {
            let error = SwapError::Os(error);
            let is_known = is_refusal(&error) || error.to_string().contains("File too large");
            assert!(is_known, "{error}");
            None
        }
        Err(
            SwapError::Budget { .. }
            | SwapError::BudgetBelowPinned { .. }
            | SwapError::Full { .. }
            | SwapError::FileFull { .. }
            | SwapError::Pinned,
        ) => None,
        Err(error) => panic!("{error}"),
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, SwapError>) -> T {
    let begun = Instant::now();
    loop {
        let result = call();
        let told = result.as_ref().err().map(ToString::to_string);
        if let Some(done) = kept(result) {
            return done;
        }
        assert!(begun.elapsed() < slowed(PATIENCE), "refused for ever: {told:?}");
        thread::yield_now();
    }
}

impl Storm {
    fn new(dir: &Path) -> Self {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let cache = SwapCache::on(&reserve).unwrap();
        let options = Store::options().pool_limit(Bytes::new(256 << 10));
        let options = options.capacity(Bytes::mib(64)).file_in(dir, Bytes::mib(64));
        #[cfg(feature = "encrypt")]
        let (options, cache) = (options.encrypted(), cache.encrypted());
        let region = match options.clone().build_region(pages(PAGES * THREADS), pages(200)) {
            Ok(region) => Some(region),
            Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
                eprintln!("skipped: the region: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        };
        let others = descriptors_in(dir);
        let store = options.cached_in(&cache).build(pages(100)).unwrap();
        let area = cache.area(Pages::new(PAGES * THREADS), dir, Bytes::mib(64)).unwrap();
        let known: Vec<_> = others.iter().map(Descriptor::numbers).collect();
        let is_new = |file: &Descriptor| {
            !known.iter().any(|(one, other)| [*one, *other].contains(&file.numbers().0))
        };
        let files = descriptors_in(dir).into_iter().filter(is_new).collect();
        let shared = (0..SHARED).map(|n| store.insert(&bytes_of(n, page())).unwrap()).collect();
        Self { reserve, store, area, region, shared, files, stop: AtomicBool::new(false) }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn has_done(&self, policy: Policy) -> Result<(), String> {
        let (store, area) = (self.store.stats(), self.area.stats());
        let region = self.region.as_ref().map(Region::stats);
        let area_has = match policy {
            Policy::WriteThrough => area.through > 0 && area.refused > 0,
            Policy::WriteBack => area.cleaned > 0,
            Policy::PutBack | Policy::Changing => true,
        };
        let store_has = store.loaded_idle > 0 && store.read_back > 0;
        let region_has = region.as_ref().is_none_or(|region| region.read_back > 0);
        let said =
            || format!("{store}{area}{}", region.map_or_else(String::new, |r| r.to_string()));
        (area_has && store_has && region_has).then_some(()).ok_or_else(said)
    }
}

struct Worker<'a> {
    storm: &'a Storm,
    whose: u64,
    rng: Rng,
    version: u64,
    objects: HashMap<Key, Vec<u8>>,
    keys: Vec<Key>,
    area: Vec<Option<u64>>,
    region: Vec<Option<u64>>,
}

impl<'a> Worker<'a> {
    fn new(storm: &'a Storm, whose: u64) -> Self {
        let none = || vec![None; PAGES as usize];
        let (objects, keys) = (HashMap::new(), Vec::new());
        let (area, region) = (none(), none());
        Self { storm, whose, rng: Rng(whose), version: whose, objects, keys, area, region }
    }

    fn work(mut self) {
        while !self.storm.is_over() {
            self.version += THREADS;
            match self.rng.below(3) {
                0 => self.use_store(),
                1 => self.use_area(),
                _ => self.use_region(),
            }
        }
        self.finish();
    }

    fn use_store(&mut self) {
        let store = &self.storm.store;
        let n = self.rng.below(SHARED);
        if let Some(pin) = kept(store.pin(self.storm.shared[n as usize])) {
            assert!(*pin == *bytes_of(n, page()), "shared object {n}");
        }
        if self.keys.len() < OBJECTS {
            let bytes = bytes_of(self.version, 1 + self.rng.below(5 * page() as u64) as usize);
            if let Some(key) = kept(store.insert(&bytes)) {
                self.keys.push(key);
                self.objects.insert(key, bytes);
            }
            return;
        }
        let at = self.rng.below(self.keys.len() as u64) as usize;
        let key = self.keys[at];
        match self.rng.below(6) {
            0 => {
                if let Some(bytes) = kept(store.take(key)) {
                    assert!(Some(bytes) == self.objects.remove(&key), "{key:?}, taken");
                    self.keys.swap_remove(at);
                }
            }
            1 | 2 => {
                if let Some(mut object) = kept(store.pin_mut(key)) {
                    assert!(*object == *self.objects[&key], "{key:?}, to be written");
                    let bytes = bytes_of(self.version, object.len());
                    object.copy_from_slice(&bytes);
                    self.objects.insert(key, bytes);
                }
            }
            _ => {
                if let Some(object) = kept(store.pin(key)) {
                    assert!(*object == *self.objects[&key], "{key:?}");
                }
            }
        }
    }

    fn offset(&mut self) -> (u64, usize) {
        let at = self.rng.below(PAGES);
        (at * THREADS + self.whose, at as usize)
    }

    fn use_area(&mut self) {
        let (area, (offset, at)) = (&self.storm.area, self.offset());
        if self.rng.below(2) == 0 {
            let stored = area.store(offset, &bytes_of(self.version, page()));
            self.area[at] = kept(stored).map(|()| self.version);
            return;
        }
        let mut out = vec![0; page()];
        if let Some(is_there) = kept(area.load(offset, &mut out)) {
            self.expect("area", at, is_there.then_some(&out), self.area[at]);
        }
    }

    fn expect(&self, what: &str, at: usize, found: Option<&Vec<u8>>, known: Option<u64>) {
        let expected = known.map(|version| bytes_of(version, page()));
        assert!(found == expected.as_ref(), "page {at} of the {what}, version {known:?}");
    }

    fn use_region(&mut self) {
        let (offset, at) = self.offset();
        let Some(region) = &self.storm.region else { return };
        if self.rng.below(2) == 0 {
            let bytes = bytes_of(self.version, page());
            retry(|| region.write_at(pages(offset), &bytes));
            self.region[at] = Some(self.version);
        } else {
            self.check_region(region, offset, at);
        }
    }

    fn check_region(&self, region: &Region, offset: u64, at: usize) {
        let mut out = vec![0; page()];
        retry(|| region.read_at(pages(offset), &mut out));
        let known = self.region[at];
        let is_right = known.map_or(out == vec![0; page()], |v| out == bytes_of(v, page()));
        assert!(is_right, "page {at} of the region, version {known:?}");
    }

    fn finish(mut self) {
        for key in &self.keys {
            assert!(Some(retry(|| self.storm.store.take(*key))) == self.objects.remove(key));
        }
        let mut out = vec![0; page()];
        for at in 0..PAGES as usize {
            let offset = at as u64 * THREADS + self.whose;
            let is_there = retry(|| self.storm.area.load(offset, &mut out));
            self.expect("area", at, is_there.then_some(&out), self.area[at]);
            if let Some(region) = &self.storm.region {
                self.check_region(region, offset, at);
            }
        }
    }
}

fn device(works: bool) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: uses only a local.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
        limit.rlim_cur = if works { limit.rlim_max } else { 4096 };
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit)
    };
    assert_eq!(done, 0);
}

/// Recalls memory and changes devices and limits for about `lasts`, or longer until
/// [`Storm::has_done`] finds the effects of `policy`.
fn disturb(storm: &Storm, lasts: Duration, policy: Policy) {
    let (mut rng, time) = (Rng(99), time::Storm::lasting(lasts));
    while time.goes_on(|| storm.has_done(policy).is_ok()) && !storm.is_over() {
        let longest = storm.reserve.largest_run().unwrap();
        let mut block = storm.reserve.alloc(Pages::new(1 + rng.below(longest.get()))).unwrap();
        let fill = rng.below(256) as u8;
        block.bytes_mut().unwrap().fill(fill);
        device(rng.below(4) > 0);
        for file in &storm.files {
            let works = [Device::Works; 3];
            let refuses = [Device::RefusesWrites, Device::RefusesReads, Device::RefusesAll];
            file.set([works, works, refuses].concat()[rng.below(9) as usize]);
        }
        let [write_back, put_back] = policy.numbers(&mut rng);
        kept(storm.area.set_write_back(write_back));
        kept(storm.area.set_put_back(put_back));
        kept(storm.store.set_budget(pages(60 + rng.below(60))));
        storm.region.iter().for_each(|region| {
            kept(region.set_budget(pages(100 + rng.below(200))));
        });
        thread::sleep(Duration::from_micros(rng.below(5000)));
        assert!(block.bytes().unwrap().iter().all(|byte| *byte == fill), "a stray write");
        drop(block);
        thread::sleep(Duration::from_micros(rng.below(5000)));
    }
    device(true);
    storm.files.iter().for_each(|file| file.set(Device::Works));
}

fn watch(limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("the storm hangs");
        std::process::exit(101);
    });
}

fn run(dir: &Path, lasts: Duration, policy: Policy) {
    let storm = Storm::new(dir);
    thread::scope(|scope| {
        for whose in 0..THREADS {
            let storm = &storm;
            scope.spawn(move || {
                let _stop = Stop(&storm.stop);
                Worker::new(storm, whose).work();
            });
        }
        let _stop = Stop(&storm.stop);
        disturb(&storm, lasts, policy);
    });
    let (store, area) = (storm.store.stats(), storm.area.stats());
    println!("{policy:?}: {store}{area}");
    store.check().unwrap();
    area.check().unwrap();
    storm.has_done(policy).unwrap();
    assert!(policy != Policy::WriteThrough || area.cleaned == 0, "{area}");
    storm.region.iter().for_each(|region| region.stats().check().unwrap());
}

fn be_a_user(dir: &Path) {
    let policy = std::env::var(POLICY).unwrap();
    let policy = Policy::ALL.into_iter().find(|one| format!("{one:?}") == policy).unwrap();
    let talks = std::env::var(TALKS).unwrap();
    let storm = Storm::new(dir);
    thread::scope(|scope| {
        for (whose, number) in (0..).zip(talks.split(' ')) {
            // SAFETY: the descriptor is inherited and has no other owner.
            let asked = unsafe { UnixStream::from_raw_fd(number.parse().unwrap()) };
            let storm = &storm;
            scope.spawn(move || {
                let _stop = Stop(&storm.stop);
                user::serve(storm, whose, asked);
            });
        }
        let _stop = Stop(&storm.stop);
        disturb(&storm, slowed(PATIENCE) * 10, policy);
    });
}

fn has_regions() -> bool {
    Store::options().build_region(pages(1), pages(4)).is_ok()
}

fn files_of(process: u32, dir: &Path) -> (u64, u64) {
    let links = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = links.map_while(Result::ok).map(|entry| entry.path());
    let here = links.filter(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(dir)));
    // A thread that simulates a device may close a descriptor at the same time.
    here.filter_map(|link| fs::metadata(link).ok()).fold((0, 0), |(files, blocks), about| {
        assert_eq!(about.nlink(), 0, "a file with a name outlives its process");
        (files + 1, blocks + about.blocks())
    })
}

/// This is one test, because the file limit is per process.
#[test]
fn no_byte_is_wrong_and_nothing_is_left_of_who_was_killed() {
    glebe_testing::alone!();
    // A limit lowered between check and write raises SIGXFSZ.
    // SAFETY: the signal is only ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if let Some(dir) = std::env::var_os(VICTIM) {
        return be_a_user(Path::new(&dir));
    }
    let (own, killed) = (Scratch::new("storm-own"), Scratch::new("storm-killed"));
    let lasts = storm(USUAL);
    watch(lasts * 2 + slowed(PATIENCE) * 4);
    for policy in Policy::ALL {
        run(own.path(), lasts / 4, policy);
    }
    let (begun, mut kills) = (Instant::now(), 0);
    let mut sums = [[0; 4]; Policy::ALL.len()];
    while kills < 2 * Policy::ALL.len() || begun.elapsed() < lasts {
        let at = kills % Policy::ALL.len();
        let name = "swap_storm::no_byte_is_wrong_and_nothing_is_left_of_who_was_killed";
        // Gives each policy both kinds of rounds.
        let round = (kills / Policy::ALL.len() + kills) as u64;
        let seen = oracle::round(name, killed.path(), Policy::ALL[at], round);
        for (sum, one) in
            sums[at].iter_mut().zip([seen.steps, seen.read, seen.refused, seen.blocks])
        {
            *sum += one;
        }
        kills += 1;
    }
    println!("{kills} users were killed");
    for (policy, [steps, read, refused, blocks]) in Policy::ALL.iter().zip(sums) {
        println!("{policy:?}: {steps} steps, {refused} refused, {read} bytes read and right");
        assert!(read > 0 && refused > 0, "{policy:?}");
        assert!(blocks > 0, "{policy:?}: no user that was killed had written its files");
    }
    for dir in [own, killed] {
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a name is left");
    }
}
