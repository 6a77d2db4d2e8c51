//! [`Places`] maps a named cache of the daemon, place by place.
//!
//! The daemon takes a place by setting its generation to 0 and cutting its file. A reader that saw
//! the old generation finds zeros: the guard replaces what was cut, and counts that. A place whose
//! count has changed since it was mapped is mapped anew, since its zeros are this process's alone.
//! A place without memory of the daemon reads as zeros.
//!
//! Lock: [`LinkLock`], for the connection and for mappings. Readers do not wait for it. Writers do,
//! since they must reach an older value of their key. A child that was forked meanwhile keeps the
//! places that it has.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::LeaseError;
use crate::guard::Guard;
use crate::link::{Link, LinkLock};
use crate::wire::{Malformed, Name};
use glebe_os::internal::mapping::{Mapping, Part, Visibility};
use glebe_os::internal::sync::{fence, MappedWord, Ordering};
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};

const WORD: usize = size_of::<MappedWord>();
const USED: usize = 0;
const SEED: usize = WORD;
const GENERATIONS: usize = 2 * WORD;
/// Generation of each place of an ended cache.
pub const ENDED: u64 = u64::MAX;
/// Most bytes of a cache's addresses.
const LEN_MAX: u64 = 1 << 40;
/// Time without requests after the daemon had no memory, or did not answer.
const PAUSE: Duration = Duration::from_millis(50);
/// Milliseconds between two looks if the daemon lives.
const LOOK: u64 = 20;
/// Longest wait for a daemon that does not answer.
const PATIENCE: Duration = Duration::from_millis(200);

/// The caller's use of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceUse {
    /// A place that another thread maps counts as one without memory.
    Read,
    /// Changes what is there.
    Change,
    /// Adds to a place, which gets memory if it has none.
    Fill,
}

/// A cache's memory. The daemon may take any place at any time.
#[derive(Debug)]
pub struct Places {
    path: PathBuf,
    name: Name,
    place: Bytes,
    control: Mapping,
    /// Declared before the memory, which it watches.
    guard: Guard,
    memory: Mapping,
    /// The generation that is mapped; 0 for none.
    mapped: Box<[MappedWord]>,
    /// The guard's count when the generation was mapped.
    replaced: Box<[MappedWord]>,
    /// When somebody looked if the daemon lives: milliseconds.
    looked: MappedWord,
    link: LinkLock,
}

/// Leaves a slow daemon in peace for longer.
fn pause_after(begin: Instant) -> Instant {
    Instant::now() + PAUSE + begin.elapsed() * 10
}

impl Places {
    /// Opens the cache `name` of this user, or makes it. The daemon gives at most `len` bytes.
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
        let guard = Guard::new(&memory, place)?;
        let zeros = || (0..opened.places).map(|_| MappedWord::new(0)).collect();
        let (mapped, replaced) = (zeros(), zeros());
        let link = Link { client: Some(client), number: opened.number, pause: None };
        let (path, link) = (path.to_owned(), LinkLock::new(link));
        let looked = MappedWord::new(now());
        Ok(Self { path, name, place, control, guard, memory, mapped, replaced, looked, link })
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

    /// Returns a place that has memory. `None` if it has none, or if nobody answers.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize, wanted: PlaceUse) -> Option<Part<'_>> {
        self.look();
        let used = self.word(USED);
        if used.load(Ordering::Relaxed) == 0 {
            used.store(1, Ordering::Relaxed);
        }
        let now = self.generation(index);
        match self.is_mapped(index, now) {
            true => Some(self.part(index)),
            false if now == 0 && wanted == PlaceUse::Read => None,
            false => self.map(index, wanted),
        }
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
        let Some(mut link) = self.link.get(false) else { return };
        if link.client.as_ref().is_some_and(Client::has_ended) {
            self.forget(&mut link);
        }
        if link.client.is_none() && !link.is_paused() {
            let begin = Instant::now();
            let is_linked = self.linked(&mut link).is_ok();
            link.pause = (!is_linked).then(|| pause_after(begin));
        }
    }

    fn forget(&self, link: &mut Link) {
        link.client = None;
        // Without memory the control file stays, and entries may be old until a daemon is found.
        let _ = self.control.forget(Bytes::ZERO, self.control.len());
        let _ = self.memory.forget(Bytes::ZERO, self.memory.len());
        self.mapped.iter().for_each(|generation| generation.store(0, Ordering::Release));
    }

    /// Ends the cache for all processes. Does nothing if no daemon runs.
    ///
    /// # Errors
    /// If the daemon does not answer; [`LeaseError::Forked`] in a child forked while another thread
    /// of the parent asked the daemon.
    pub fn end(&self) -> Result<(), LeaseError> {
        let mut link = self.link.get(true).ok_or(LeaseError::Forked)?;
        match (self.linked(&mut link), &link.client) {
            (Ok(()), Some(client)) => client.end_cache(link.number),
            (Err(LeaseError::NoDaemon { source, .. }), _) if is_none(&source) => Ok(()),
            (other, _) => other,
        }
    }

    #[cold]
    fn map(&self, index: usize, wanted: PlaceUse) -> Option<Part<'_>> {
        let mut link = self.link.get(wanted != PlaceUse::Read)?;
        let now = self.generation(index);
        if self.is_mapped(index, now) {
            return Some(self.part(index));
        }
        if link.is_paused() && (now == 0 || link.client.is_none()) {
            return None;
        }
        let begin = Instant::now();
        let is_linked = self.linked(&mut link).is_ok();
        if is_linked && wanted != PlaceUse::Fill && self.generation(index) == 0 {
            return None;
        }
        let replaced = self.guard.replaced(index);
        let laid = self.laid(&mut link, index);
        link.pause = laid.is_none().then(|| pause_after(begin));
        let generation = laid?;
        self.replaced[index].store(replaced, Ordering::Release);
        self.mapped[index].store(generation, Ordering::Release);
        Some(self.part(index))
    }

    #[inline]
    fn is_mapped(&self, index: usize, generation: u64) -> bool {
        generation != 0
            && generation == self.mapped[index].load(Ordering::Acquire)
            && self.replaced[index].load(Ordering::Acquire) == self.guard.replaced(index)
    }

    /// Returns the number of times that zeros of this process began or ended to replace the place.
    /// What a caller changed there may be lost if the number has changed meanwhile.
    #[must_use]
    pub fn replaced(&self, index: usize) -> u64 {
        fence(Ordering::SeqCst);
        self.guard.replaced(index)
    }

    /// Maps a place, and returns its generation.
    fn laid(&self, link: &mut Link, index: usize) -> Option<u64> {
        match link.client.as_ref()?.place(link.number, index as u64) {
            Ok((generation, file)) => {
                let offset = Bytes::new(index as u64 * self.place.get());
                self.memory.lay(offset, &file, self.place).map(|()| generation).ok()
            }
            // The daemon has no memory to spare.
            Err(LeaseError::Refused { errno, .. }) if errno != Errno::INVAL.raw_os_error() => None,
            // The cache was ended, or the daemon does not answer.
            Err(_) => {
                self.forget(link);
                None
            }
        }
    }

    /// Makes a connection of this process, if necessary. Without one, no place is mapped: its
    /// entries might be old. An ended cache is opened anew.
    fn linked(&self, link: &mut Link) -> Result<(), LeaseError> {
        let is_gone = |client: &Client| client.has_ended() || self.generation(0) == ENDED;
        if link.client.as_ref().is_some_and(is_gone) {
            self.forget(link);
        }
        let client = match link.client.take().filter(|client| !client.is_inherited()) {
            Some(client) => client,
            None => self.join(link).inspect_err(|_| self.forget(link))?,
        };
        link.client = Some(client);
        Ok(())
    }

    /// Opens the cache on a connection of this process. A new daemon's cache replaces the old.
    fn join(&self, link: &mut Link) -> Result<Client, LeaseError> {
        let client = connected(&self.path, self.name.as_str())?;
        let opened = client.cache(self.memory.len(), self.name)?;
        let fits = opened.place == self.place.get() && opened.places == self.count() as u64;
        let file = MemoryFile::adopt(opened.control)?.map_err(|_| Malformed::Answer)?;
        if !fits || !file.is_sealed() || file.len()? < self.control.len() {
            return Err(Malformed::Answer.into());
        }
        self.control.lay(Bytes::ZERO, file.as_file(), self.control.len())?;
        link.number = opened.number;
        Ok(client)
    }

    fn generation(&self, index: usize) -> u64 {
        self.word(GENERATIONS + index * WORD).load(Ordering::Acquire)
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

/// Returns true if an error of connect(2) proves that no daemon runs.
fn is_none(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
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
