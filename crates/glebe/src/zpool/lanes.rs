//! [`Lanes`]: for each thread, slots that it gave up and uses again without a lock.
//!
//! A removed object's slot and entry may stay together, *parked* in the *lane* of the thread that
//! removed it, by class: the slot counts as used and its back pointer names the entry, whose word
//! is that of a free one; the entry as it was stands in the lane. The thread's next object of that
//! class takes both. Parked bytes are bounded for each lane.
//!
//! An object that came there may be *owned* by the lane: its entry's word says only where the lane
//! has it written what it is. To all others it is no object, so nobody else changes it; the
//! thread removes it, and has its place parked, without an exchange. Whoever else asks for it by
//! its handle, and whoever needs all objects, takes it from the lane first: it is then an object
//! like any, and never owned again. A lane of which something was wanted owns nothing for a while.
//! What is owned is written by its thread after it left the lane, so as long as the word is that
//! of a free entry nobody takes it from the lane.
//!
//! A lane has places for a class, a [`Magazine`], once its thread both stored and removed objects
//! of it under the class's lock. All are given back when the table changes: a thread that removes
//! what it stored long ago needs none.
//!
//! A lane is its thread's own, who marks it *busy* while there, by plain stores. Whoever else
//! wants it stores *locked*, makes all threads of the process pass a barrier (membarrier(2)), and
//! waits until it is not busy: either the owner has seen `locked` and stays out, or it is seen to
//! be busy. So the owner pays no locked instruction, and others some microseconds. Nothing waits
//! or touches a caller's memory while a lane is busy. Without that system call there are no lanes.
//!
//! Lock: `turn`, of those who lock others' lanes; taken before a class's, and never while one is
//! held. A lane is entered under a class's lock, which waits for nobody.
//!
//! # Safety
//! Magazines are freed by [`Lane::give_back`], whose caller has the lane locked. All others reach
//! one through [`Inside`] or a locked lane, and cannot keep it longer than that.
#![allow(unsafe_code)]

#[path = "lanes/chunks.rs"] // this file may be a module under another name
mod chunks;
#[path = "lanes/magazine.rs"] // as above
mod magazine;

use std::sync::OnceLock;
use std::time::Duration;

use super::account::Account;
use super::entry::Entry;
use super::memory::CLASSES_MAX;
use crate::sync::{light_barrier, lock, yield_now, AtomicU64, Mutex, Ordering};
use crate::sys::membarrier;
use chunks::Chunks;

pub(crate) use magazine::{Counted, Kept, Magazine, Owner, Wanted, PLACES};

/// Threads that have a lane.
pub(crate) const THREADS: usize = if cfg!(loom) { 2 } else { 64 };
/// Classes of a word of bits.
const WORD: u32 = u64::BITS;
const WORDS: usize = CLASSES_MAX.div_ceil(WORD) as usize;
/// Parked bytes of a lane: of so many bytes in use one, within bounds.
const USED_PER_PARKED: u64 = 1024;
const PARKED_BYTES_MIN: u64 = 16 << 10;
const PARKED_BYTES_MAX: u64 = 128 << 10;
/// Where the kernel refuses a barrier: what a thread stored before is seen by then.
const NO_BARRIER: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: [OnceLock<Box<Lane>>; THREADS],
    turn: Mutex<()>,
    /// Parts of a page that lengths are counted by; none where there are no lanes.
    lengths: usize,
}

/// What one thread has, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Lane {
    thread: usize,
    busy: AtomicU64,
    locked: AtomicU64,
    parked_bytes: AtomicU64,
    bound: AtomicU64,
    /// Whether anything may be owned.
    owns: AtomicU64,
    /// Objects by length, those more than the classes know of; modulo 2^64.
    lengths: Box<[AtomicU64]>,
    /// A bit for each class that an object came to under its lock since magazines were given back.
    stored: [AtomicU64; WORDS],
    magazines: Chunks,
}

/// A lane that its own thread is in.
pub(crate) struct Inside<'a>(&'a Lane);

#[inline]
fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Of words that one thread at a time changes: no locked instruction.
#[inline]
fn add(word: &AtomicU64, n: u64) {
    word.store(load(word).wrapping_add(n), Ordering::Relaxed);
}

impl Lanes {
    /// For objects whose lengths are counted by so many parts of a page; without any, no lane is
    /// ever made.
    pub(crate) fn new(lengths: usize) -> Self {
        let lanes = [const { OnceLock::new() }; THREADS];
        Self { lanes, turn: Mutex::new(()), lengths }
    }

    /// Whether there is never any lane.
    pub(crate) fn are_off(&self) -> bool {
        self.lengths == 0
    }

    #[inline]
    fn of(&self, thread: usize) -> Option<&Lane> {
        Some(self.lanes.get(thread)?.get()?)
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Lane)> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter_map(|(thread, lane)| Some((thread, &**lane.get()?)))
    }

    /// The calling thread's lane; none where it has none, or another thread has locked it.
    #[inline]
    pub(crate) fn enter(&self, thread: usize) -> Option<Inside<'_>> {
        let lane = self.of(thread)?;
        // Busy already: this is a signal handler.
        if load(&lane.busy) != 0 {
            return None;
        }
        lane.busy.store(1, Ordering::Relaxed);
        let inside = Inside(lane);
        light_barrier();
        (lane.locked.load(Ordering::Acquire) == 0).then_some(inside)
    }

    /// Makes the calling thread's lane if it may have one and there is room for it; how many
    /// bytes of objects are in use.
    #[cold]
    pub(crate) fn make(&self, account: &Account, thread: usize, used: u64) {
        let Some(place) = self.lanes.get(thread).filter(|_| self.lengths > 0) else { return };
        if let Some(lane) = place.get() {
            lane.set_bound(used);
            return;
        }
        let lengths = self.lengths * size_of::<AtomicU64>();
        if !account.charge((size_of::<Lane>() + lengths) as u64) {
            return;
        }
        let word = || AtomicU64::new(0);
        let lane = Lane {
            thread,
            busy: word(),
            locked: word(),
            parked_bytes: word(),
            bound: word(),
            owns: word(),
            lengths: (0..self.lengths).map(|_| word()).collect(),
            stored: std::array::from_fn(|_| word()),
            magazines: Chunks::new(),
        };
        lane.set_bound(used);
        // This thread alone has the number.
        let _ = place.set(Box::new(lane));
    }

    /// Remembers that the calling thread stored an object under the lock of a class.
    #[inline]
    pub(crate) fn note_stored(&self, thread: usize, class: u32) {
        let Some(lane) = self.of(thread) else { return };
        let Some(word) = lane.stored.get((class / WORD) as usize) else { return };
        let (bits, bit) = (load(word), 1 << (class % WORD));
        // Who has the lane locked may clear it meanwhile: then the next one is remembered.
        if bits & bit == 0 {
            word.store(bits | bit, Ordering::Relaxed);
        }
    }

    /// Does `work` with each lane while its owner is kept out: with those where something is
    /// parked or owned, or with all. False if the kernel made no barrier, and then with the own
    /// one alone.
    #[cold]
    pub(crate) fn each_locked(&self, own: usize, all: bool, work: impl Fn(&Lane)) -> bool {
        let _turn = lock(&self.turn);
        let wanted = |lane: &Lane| all || lane.has_any();
        let mut others = false;
        for (thread, lane) in self.all().filter(|(_, lane)| wanted(lane)) {
            lane.locked.store(1, Ordering::Relaxed);
            others |= thread != own;
        }
        let made = !others || membarrier::barrier().is_ok();
        for (thread, lane) in self.all().filter(|(_, lane)| load(&lane.locked) != 0) {
            // The own one can be busy only below this call, which is in a signal handler.
            let is_open = if thread == own { load(&lane.busy) == 0 } else { made };
            if is_open {
                while lane.busy.load(Ordering::Acquire) != 0 {
                    yield_now();
                }
                work(lane);
            }
            lane.locked.store(0, Ordering::Release);
        }
        made
    }

    /// Does `work` with the lane of another thread while it is kept out; or with the calling
    /// thread's, if it is not in it. No signal handler that interrupts it there may want that.
    #[cold]
    pub(crate) fn locked(&self, own: usize, thread: usize, work: impl Fn(&Lane)) {
        let _turn = lock(&self.turn);
        let Some(lane) = self.of(thread) else { return };
        lane.locked.store(1, Ordering::SeqCst);
        if thread != own && membarrier::barrier().is_err() {
            // The object cannot be had in another way.
            std::thread::sleep(NO_BARRIER);
        }
        while lane.busy.load(Ordering::Acquire) != 0 {
            yield_now();
        }
        work(lane);
        lane.locked.store(0, Ordering::Release);
    }

    /// Whether anything may be parked or owned.
    pub(crate) fn have_any(&self) -> bool {
        self.all().any(|(_, lane)| lane.has_any())
    }

    /// Whether anything is parked.
    pub(crate) fn has_parked(&self) -> bool {
        self.all().any(|(_, lane)| load(&lane.parked_bytes) != 0)
    }

    #[cfg(test)]
    pub(crate) fn parked_bytes(&self) -> u64 {
        self.all().map(|(_, lane)| load(&lane.parked_bytes)).sum()
    }

    /// Waits until every thread has left its lane that was in it. False if that cannot be known.
    #[cold]
    pub(crate) fn wait_out(&self, own: usize) -> bool {
        self.each_locked(own, true, |_| ())
    }

    /// Adds objects by length to `sums`, modulo 2^64.
    pub(crate) fn add_lengths(&self, sums: &mut [u64]) {
        for (_, lane) in self.all() {
            for (sum, n) in sums.iter_mut().zip(&lane.lengths) {
                *sum = sum.wrapping_add(load(n));
            }
        }
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(0, Ordering::Release);
    }
}

impl Inside<'_> {
    /// The magazine of a class, if there is one.
    #[inline]
    pub(crate) fn magazine(&self, class: u32) -> Option<&Magazine> {
        self.0.magazines.magazine(class)
    }

    /// Whose the lane is, by number.
    #[inline]
    pub(crate) fn thread(&self) -> usize {
        self.0.thread
    }

    /// Makes the magazine of a class take what is parked, under the lock of that class, which is
    /// not retired. A class that the thread takes objects from only has none.
    #[cold]
    pub(crate) fn open(&self, account: &Account, class: u32, slot_bytes: u32) {
        if !self.0.has_stored(class) {
            return;
        }
        if self.magazine(class).is_none() {
            if !account.charge(Chunks::BYTES) {
                return;
            }
            self.0.magazines.make(class);
        }
        if let Some(magazine) = self.magazine(class).filter(|magazine| magazine.is_closed()) {
            magazine.open(slot_bytes);
        }
    }

    /// Parks an entry with its slot; false, and nothing done, without room.
    #[inline]
    pub(crate) fn park(&self, magazine: &Magazine, kept: Kept) -> bool {
        let Some(bytes) = self.with_one_more(magazine) else { return false };
        if !magazine.park(kept) {
            return false;
        }
        self.0.parked_bytes.store(bytes, Ordering::Relaxed);
        true
    }

    /// Parks the entry of an object that is owned and gone; false, and nothing done, without room.
    #[inline]
    pub(crate) fn park_owned(&self, magazine: &Magazine, place: usize) -> bool {
        let Some(bytes) = self.with_one_more(magazine) else { return false };
        magazine.park_owned(place);
        self.0.parked_bytes.store(bytes, Ordering::Relaxed);
        true
    }

    /// The bytes that are parked with one slot more, if they may be so many.
    #[inline]
    fn with_one_more(&self, magazine: &Magazine) -> Option<u64> {
        let bytes = load(&self.0.parked_bytes) + magazine.slot_bytes() as u64;
        (bytes <= load(&self.0.bound) && !magazine.is_closed()).then_some(bytes)
    }

    /// Takes what is parked at a place, which was just looked at.
    #[inline]
    pub(crate) fn take(&self, magazine: &Magazine, place: usize) {
        magazine.take(place);
        add(&self.0.parked_bytes, (magazine.slot_bytes() as u64).wrapping_neg());
    }

    /// As [`Inside::take`], and owns the object that comes there; false, and nothing done, if it
    /// may not.
    #[inline]
    pub(crate) fn take_and_own(&self, magazine: &Magazine, place: usize, live: Entry) -> bool {
        if !magazine.own(place, live) {
            return false;
        }
        if load(&self.0.owns) == 0 {
            self.0.owns.store(1, Ordering::Relaxed);
        }
        add(&self.0.parked_bytes, (magazine.slot_bytes() as u64).wrapping_neg());
        true
    }

    /// Counts an object of length part `new` in place of a parked one of `old`.
    #[inline]
    pub(crate) fn recount(&self, old: usize, new: usize) {
        if old != new {
            add(&self.0.lengths[old], 1_u64.wrapping_neg());
            add(&self.0.lengths[new], 1);
        }
    }
}

impl Lane {
    /// Whose it is, by number.
    #[inline]
    pub(crate) fn thread(&self) -> usize {
        self.thread
    }

    fn has_any(&self) -> bool {
        load(&self.parked_bytes) | load(&self.owns) != 0
    }

    fn set_bound(&self, used: u64) {
        let bound = (used / USED_PER_PARKED).clamp(PARKED_BYTES_MIN, PARKED_BYTES_MAX);
        self.bound.store(bound, Ordering::Relaxed);
    }

    fn has_stored(&self, class: u32) -> bool {
        let word = self.stored.get((class / WORD) as usize);
        word.is_some_and(|word| load(word) >> (class % WORD) & 1 == 1)
    }

    /// All magazines by class; the lane is locked.
    pub(crate) fn magazines(&self) -> impl Iterator<Item = (u32, &Magazine)> {
        self.magazines.all()
    }

    /// Gives the magazines back, unless anything is parked or owned.
    ///
    /// # Safety
    /// The lane is locked, and the caller has none of them.
    pub(crate) unsafe fn give_back(&self, account: &Account) {
        if !self.has_any() {
            // SAFETY: whoever is in a lane, or has it locked, is there alone.
            account.release(unsafe { self.magazines.give_back() });
            self.stored.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Says that nothing is parked any more, and whether anything is owned; the lane is locked.
    pub(crate) fn emptied(&self, owns: bool) {
        self.parked_bytes.store(0, Ordering::Relaxed);
        self.owns.store(owns.into(), Ordering::Relaxed);
    }
}
