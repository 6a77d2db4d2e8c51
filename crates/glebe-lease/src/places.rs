//! [`Places`] maps a named cache of the daemon, place by place.
//!
//! The daemon takes a place by setting its generation to 0 and cutting its file. A reader that saw
//! the old generation finds zeros: the guard replaces what was cut. A place without memory of the
//! daemon reads as zeros.
//!
//! Lock: `link`, for a place's mapping. Nobody waits for it: who does not get it does without the
//! place. A child forked meanwhile keeps the places that it has.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::LeaseError;
use crate::guard::Guard;
use crate::wire::{Malformed, Name};
use glebe_os::internal::mapping::{Mapping, Part, Visibility};
use glebe_os::internal::sync::{try_lock, MappedWord, Mutex, MutexGuard, Ordering};
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};

const WORD: usize = size_of::<MappedWord>();
const USED: usize = 0;
const SEED: usize = WORD;
const GENERATIONS: usize = 2 * WORD;
/// Most bytes of a cache's addresses.
const LEN_MAX: u64 = 1 << 40;
/// Time without requests after the daemon had no memory.
const PAUSE: Duration = Duration::from_millis(50);
/// Milliseconds between two looks if the daemon lives.
const LOOK: u64 = 20;
/// Longest wait for a daemon that does not answer, and the rest after it.
const PATIENCE: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(2);
const EINVAL: i32 = Errno::INVAL.raw_os_error();

/// A cache's memory. The daemon may take any place at any time.
#[derive(Debug)]
pub struct Places {
    path: PathBuf,
    name: Name,
    place: Bytes,
    control: Mapping,
    /// Declared before the memory, which it watches.
    _guard: Guard,
    memory: Mapping,
    /// The generation that is mapped; 0 for none.
    mapped: Box<[MappedWord]>,
    /// When somebody looked if the daemon lives: milliseconds.
    looked: MappedWord,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    client: Option<Client>,
    number: u64,
    /// When to ask the daemon again.
    pause: Option<Instant>,
}

impl Places {
    /// Opens the cache `name` of this user, or makes it of `len` bytes, as far as the daemon has as
    /// much.
    ///
    /// # Errors
    /// See [`Client::connect_to`]; [`LeaseError::Refused`] if the user has too many caches.
    pub fn open(path: &Path, name: &str, len: Bytes) -> Result<Self, LeaseError> {
        let client = connected(path, name)?;
        let name = Name::new(name);
        let opened = client.cache(len, name)?;
        let place = Bytes::new(opened.place);
        let size = PageSize::new(opened.place).filter(|_| opened.places > 0);
        let len = opened.place.checked_mul(opened.places).filter(|len| *len <= LEN_MAX);
        let (Some(size), Some(len)) = (size, len) else { return Err(Malformed::Answer.into()) };
        let control = control_of(opened.control, opened.places)?;
        let memory = Mapping::aligned(Bytes::new(len), size, Visibility::ORDINARY)?;
        let _guard = Guard::new(&memory, place)?;
        let mapped = (0..opened.places).map(|_| MappedWord::new(0)).collect();
        let link = Link { client: Some(client), number: opened.number, pause: None };
        let (path, link) = (path.to_owned(), Mutex::new(link));
        let looked = MappedWord::new(now());
        Ok(Self { path, name, place, control, _guard, memory, mapped, looked, link })
    }

    /// Returns the number of places.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mapped.len()
    }

    /// Returns the bytes of a place.
    #[must_use]
    pub fn place(&self) -> Bytes {
        self.place
    }

    /// Returns the cache's random number, the same in all processes.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.word(SEED).load(Ordering::Relaxed)
    }

    /// Returns a place that has memory, else `None`.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<Part<'_>> {
        self.look();
        let used = self.word(USED);
        if used.load(Ordering::Relaxed) == 0 {
            used.store(1, Ordering::Relaxed);
        }
        let now = self.word(GENERATIONS + index * WORD).load(Ordering::Acquire);
        match now != 0 && now == self.mapped[index].load(Ordering::Acquire) {
            true => Some(self.part(index)),
            false if now == 0 => None,
            false => self.map(index),
        }
    }

    /// Returns a place, with memory of the daemon if it has none yet. `None` if the daemon has no
    /// memory to spare.
    #[must_use]
    #[inline]
    pub fn get_or_ask(&self, index: usize) -> Option<Part<'_>> {
        self.get(index).or_else(|| self.map(index))
    }

    /// Sees the end of a killed daemon. Its memory would not be another process's any more.
    #[inline]
    fn look(&self) {
        let (now, last) = (now(), self.looked.load(Ordering::Relaxed));
        if now.wrapping_sub(last) > LOOK {
            self.looked.store(now, Ordering::Relaxed);
            self.look_now();
        }
    }

    #[cold]
    fn look_now(&self) {
        let Some(mut link) = self.link() else { return };
        if link.client.as_ref().is_some_and(Client::has_ended) {
            self.forget(&mut link);
        }
    }

    fn forget(&self, link: &mut Link) {
        link.client = None;
        // Without memory the control file stays, and entries may be old until a daemon is found.
        let _ = self.control.forget(Bytes::ZERO, self.control.len());
        let _ = self.memory.forget(Bytes::ZERO, self.memory.len());
        self.mapped.iter().for_each(|generation| generation.store(0, Ordering::Release));
    }

    /// Ends the cache for all processes.
    ///
    /// # Errors
    /// If the daemon has ended.
    pub fn end(&self) -> Result<(), LeaseError> {
        let Some(mut link) = self.link() else { return Ok(()) };
        let number = link.number;
        self.client(&mut link).map_or(Ok(()), |client| client.end_cache(number))
    }

    #[cold]
    fn map(&self, index: usize) -> Option<Part<'_>> {
        let mut link = self.link()?;
        if link.pause.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let (number, begin) = (link.number, Instant::now());
        let answer = self.client(&mut link).map(|client| client.place(number, index as u64));
        let laid = match answer {
            Some(Ok((generation, file))) => {
                let offset = Bytes::new(index as u64 * self.place.get());
                self.memory.lay(offset, &file, self.place).map(|()| generation).ok()
            }
            // The daemon has no memory to spare.
            Some(Err(LeaseError::Refused { errno, .. })) if errno != EINVAL => None,
            // The daemon does not answer in time. Its answer may come later, and nobody reads it.
            Some(Err(LeaseError::Connection(error))) if error.kind() == ErrorKind::WouldBlock => {
                None
            }
            // The cache or the daemon has ended.
            Some(Err(_)) => {
                self.forget(&mut link);
                None
            }
            None => None,
        };
        let pause = if begin.elapsed() < PATIENCE { PAUSE } else { REST };
        link.pause = laid.is_none().then(|| Instant::now() + pause);
        self.mapped[index].store(laid?, Ordering::Release);
        Some(self.part(index))
    }

    /// Returns this process's connection. A new daemon has a new cache, which replaces the old.
    fn client<'a>(&self, link: &'a mut Link) -> Option<&'a Client> {
        if link.client.as_ref().is_none_or(|client| client.is_inherited() || client.has_ended()) {
            link.client = None;
            let client = connected(&self.path, self.name.as_str()).ok()?;
            let opened = client.cache(self.memory.len(), self.name).ok()?;
            let fits = opened.place == self.place.get() && opened.places == self.count() as u64;
            let file = MemoryFile::adopt(opened.control).ok()?.ok()?;
            let is_long = file.len().is_ok_and(|len| len >= self.control.len());
            if !fits || !file.is_sealed() || !is_long {
                return None;
            }
            self.control.lay(Bytes::ZERO, file.as_file(), self.control.len()).ok()?;
            link.number = opened.number;
            link.client = Some(client);
        }
        link.client.as_ref()
    }

    fn link(&self) -> Option<MutexGuard<'_, Link>> {
        try_lock(&self.link)
    }

    fn part(&self, index: usize) -> Part<'_> {
        self.memory.part(Bytes::new(index as u64 * self.place.get()), self.place)
    }

    #[inline]
    fn word(&self, at: usize) -> &MappedWord {
        self.control.word(at)
    }
}

/// Returns milliseconds of the cheapest clock, whose steps have some.
#[inline]
fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec as u64).wrapping_mul(1000).wrapping_add(time.tv_nsec as u64 / 1_000_000)
}

fn connected(path: &Path, name: &str) -> Result<Client, LeaseError> {
    Client::connect_within(path, name, PATIENCE)
}

/// Maps a control file, whose length nobody can shorten.
fn control_of(file: File, places: u64) -> Result<Mapping, LeaseError> {
    let file = MemoryFile::adopt(file)?.map_err(|_| Malformed::Answer)?;
    let page = page_size();
    let len = Bytes::new(GENERATIONS as u64 + places * WORD as u64).pages_up(page).bytes(page);
    if !file.is_sealed() || file.len()? < len {
        return Err(Malformed::Answer.into());
    }
    Ok(Mapping::part_of(file.as_file(), Bytes::ZERO, len, page)?)
}
