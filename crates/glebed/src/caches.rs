//! [`Caches`] is the table of named caches: memory that leases leave idle, until a lease needs it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};

use glebe::internal::mapping::Mapping;
use glebe::internal::sync::Ordering;
use glebe::internal::sys::memory::memory_file::MemoryFile;
use glebe::internal::ClosedBlock;
use glebe::units::Bytes;
use glebe_lease::internal::ENDED;
use glebe_lease::wire::{Flags, Name};
use glebe_lease::Row;

/// Numbers of caches begin here, beyond those of leases.
const FIRST: u64 = 1 << 62;
/// Most caches of a user.
pub(crate) const CACHES_MAX: usize = 64;
const WORD: usize = size_of::<u64>();
const USED: usize = 0;
const SEED: usize = WORD;
const GENERATIONS: usize = 2 * WORD;

#[derive(Debug)]
struct Cache {
    uid: u32,
    name: Name,
    file: MemoryFile,
    control: Mapping,
    places: Vec<Option<Place>>,
    /// Places that have memory.
    filled: usize,
}

#[derive(Debug)]
struct Place {
    generation: u64,
    block: ClosedBlock,
}

#[derive(Debug)]
pub(crate) struct Caches {
    all: BTreeMap<u64, Cache>,
    last: u64,
    /// The last generation of all. It begins at random, unlike another daemon's.
    generation: u64,
    place: Bytes,
}

impl Caches {
    pub(crate) fn new(place: Bytes) -> Self {
        let generation = random() >> 1;
        Self { all: BTreeMap::new(), last: FIRST, generation, place }
    }

    pub(crate) fn place(&self) -> Bytes {
        self.place
    }

    pub(crate) fn find(&self, uid: u32, name: Name) -> Option<u64> {
        let is_it = |cache: &Cache| cache.uid == uid && cache.name == name;
        self.all.iter().find(|(_, cache)| is_it(cache)).map(|(number, _)| *number)
    }

    pub(crate) fn of(&self, uid: u32) -> usize {
        self.all.values().filter(|cache| cache.uid == uid).count()
    }

    /// Adds a cache without memory.
    pub(crate) fn add(&mut self, uid: u32, name: Name, places: usize) -> crate::Result<u64> {
        let len = Bytes::new((GENERATIONS + places * WORD) as u64);
        let page = glebe::page_size();
        let len = len.pages_up(page).bytes(page);
        let file = MemoryFile::new(len)?;
        // A touch of an allocated page raises no SIGBUS.
        file.allocate(0, len.get())?;
        let control = Mapping::part_of(file.as_file(), Bytes::ZERO, len, page)?;
        control.word(SEED).store(random(), Ordering::Relaxed);
        control.word(USED).store(1, Ordering::Relaxed);
        let places = (0..places).map(|_| None).collect();
        self.last += 1;
        self.all.insert(self.last, Cache { uid, name, file, control, places, filled: 0 });
        Ok(self.last)
    }

    /// Returns the number of places, and the control file.
    pub(crate) fn shown(&self, number: u64) -> Option<(u64, BorrowedFd<'_>)> {
        let cache = self.all.get(&number)?;
        Some((cache.places.len() as u64, cache.file.as_file().as_fd()))
    }

    /// Returns true if this user's cache has the place.
    pub(crate) fn has(&self, uid: u32, number: u64, index: u64) -> bool {
        let cache = self.all.get(&number).filter(|cache| cache.uid == uid);
        cache.is_some_and(|cache| index < cache.places.len() as u64)
    }

    /// Returns the generation and the file of a place that has memory.
    pub(crate) fn filled(&mut self, number: u64, index: u64) -> Option<(u64, BorrowedFd<'_>)> {
        let place = self.all.get_mut(&number)?.places.get_mut(index as usize)?.as_mut()?;
        Some((place.generation, place.block.give().next()?))
    }

    pub(crate) fn fill(&mut self, number: u64, index: u64, block: ClosedBlock) {
        let Some(cache) = self.all.get_mut(&number) else { return };
        self.generation += 1;
        let generation = self.generation;
        cache.places[index as usize] = Some(Place { generation, block });
        cache.filled += 1;
        cache.generation_of(index as usize, generation);
    }

    /// Takes `count` places, lowest memory first, to be given back. If they shall be `contiguous`,
    /// takes the first adjacent ones, or none.
    pub(crate) fn take(&mut self, count: usize, contiguous: bool) -> Vec<ClosedBlock> {
        let mut starts: Vec<(u64, u64, usize)> = Vec::new();
        for (number, cache) in &self.all {
            let start = |place: &Place| place.block.start();
            let all = cache.places.iter().enumerate();
            starts.extend(all.filter_map(|(at, it)| Some((start(it.as_ref()?), *number, at))));
        }
        starts.sort_unstable();
        let first = if contiguous { self.adjacent(&starts, count) } else { Some(0) };
        let Some(first) = first else { return Vec::new() };
        starts.drain(..first);
        starts.truncate(count);
        let take = |(_, number, at)| self.all.get_mut(&number)?.empty(at);
        starts.into_iter().filter_map(take).collect()
    }

    /// Returns where the first `count` adjacent places begin.
    fn adjacent(&self, starts: &[(u64, u64, usize)], count: usize) -> Option<usize> {
        let each = self.place.pages_down(glebe::page_size()).get();
        let mut first = 0;
        (0..starts.len()).find_map(|nth| {
            if nth > 0 && starts[nth - 1].0 + each != starts[nth].0 {
                first = nth;
            }
            (nth + 1 - first == count).then_some(first)
        })
    }

    /// Takes a place of the largest cache, if that has at least two more than cache `number`.
    pub(crate) fn take_of_larger(&mut self, number: u64) -> Option<ClosedBlock> {
        let own = self.all.get(&number)?.filled;
        let largest = self.all.values_mut().max_by_key(|cache| cache.filled)?;
        let last = largest.places.iter().rposition(Option::is_some)?;
        (largest.filled > own + 1).then(|| largest.empty(last)).flatten()
    }

    /// Ends a user's cache.
    pub(crate) fn remove(&mut self, uid: u32, number: u64) -> Option<Vec<ClosedBlock>> {
        self.all.get(&number).filter(|cache| cache.uid == uid)?;
        let mut cache = self.all.remove(&number)?;
        let blocks = (0..cache.places.len()).filter_map(|at| cache.empty(at)).collect();
        (0..cache.places.len()).for_each(|at| cache.generation_of(at, ENDED));
        Some(blocks)
    }

    /// Takes the memory of caches that nobody has used since the last look.
    pub(crate) fn take_unused(&mut self) -> Vec<ClosedBlock> {
        let mut taken = Vec::new();
        for cache in self.all.values_mut() {
            if cache.control.word(USED).swap(0, Ordering::Relaxed) == 0 {
                taken.extend((0..cache.places.len()).filter_map(|at| cache.empty(at)));
            }
        }
        taken
    }

    pub(crate) fn take_all(&mut self) -> Vec<ClosedBlock> {
        self.take(usize::MAX, false)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.filled_places() as u64 * self.place.get()
    }

    pub(crate) fn filled_places(&self) -> usize {
        self.all.values().map(|cache| cache.filled).sum()
    }

    /// Returns the rows of `uid` from a number on; all rows for root.
    pub(crate) fn rows(&self, uid: u32, from: u64, most: usize) -> Vec<Row> {
        let own = self.all.range(from..).filter(|(_, cache)| uid == 0 || cache.uid == uid);
        let row = |(number, cache): (&u64, &Cache)| Row {
            lease: *number,
            bytes: cache.filled as u64 * self.place.get(),
            uid: cache.uid,
            pid: 0,
            flags: Flags { revocable: true, ..Flags::default() },
            is_cache: true,
            name: cache.name,
        };
        own.map(row).take(most).collect()
    }
}

impl Cache {
    /// Tells clients that the place has no memory, and returns its block.
    fn empty(&mut self, at: usize) -> Option<ClosedBlock> {
        let place = self.places.get_mut(at)?.take()?;
        self.filled -= 1;
        self.generation_of(at, 0);
        Some(place.block)
    }

    fn generation_of(&self, at: usize, generation: u64) {
        self.control.word(GENERATIONS + at * WORD).store(generation, Ordering::Release);
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}
