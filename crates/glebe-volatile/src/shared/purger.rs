//! [`Purger`] looks at a file that other processes use, and purges it. A purger keeps no marks
//! alive. Users can write anything, so offsets and lengths come only from the checked header.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::guard::Guard;
use super::layout::{Field, Layout, NO_QUOTA};
use super::ledger::Ledger;
use super::options::read_header;
use super::protocol::is_pinned;
use super::purge::{self, ByLevel};
use super::shed::Queue;
use super::word::Word;
use crate::{Error, Priority};
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::files::ofd_lock::Description;
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::internal::sys::processes::claim::Claim;
use glebe_os::units::Bytes;

/// A purger of a file that others use.
#[derive(Debug)]
pub struct Purger {
    // Dropped before the ledger that it watches.
    _guard: Guard,
    ledger: Arc<Ledger>,
    claim: Mutex<Option<Description>>,
    freed: ByLevel<MappedWord>,
    pub(super) queue: Mutex<Queue>,
    pub(super) taken: Claim,
}

/// A process that uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Process number in its own PID namespace, a hint.
    pub process: u32,
    /// Bytes pinned, in whole granules.
    pub pinned: Bytes,
}

/// The state of a file, each granule read at its own moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Look {
    /// Bytes of each priority that a purge could free; 0 without users, because marks end with the
    /// last user.
    pub marked_bytes: [Bytes; Priority::COUNT],
    /// Lowest key of each priority; its granule is purged first. Keys are comparable between files.
    pub oldest: [Option<u64>; Priority::COUNT],
    /// Bytes of granules that are marked, present and pinned.
    pub pinned_bytes: Bytes,
    /// Processes that use the file now, once per `Shared`.
    pub holders: Vec<Holder>,
    /// Pin quota of each [`Shared`](super::Shared), if limited.
    pub quota: Option<Bytes>,
    /// Bytes freed by purges since the file was made.
    pub purged: Bytes,
}

impl Purger {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As [`SharedOptions::open`](super::SharedOptions::open).
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of(MemoryFile::open(path)?.map_err(Error::UnsuitableFile)?)
    }

    /// Opens the file of a descriptor.
    ///
    /// # Errors
    /// As [`Purger::open`].
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, Error> {
        Self::of(MemoryFile::adopt(descriptor.into())?.map_err(Error::UnsuitableFile)?)
    }

    fn of(file: MemoryFile) -> Result<Self, Error> {
        let layout = read_header(&file)?;
        let ledger = Arc::new(Ledger::new(file, layout)?);
        Ok(Self {
            _guard: Guard::new(&ledger, None, false)?,
            ledger,
            claim: Mutex::new(None),
            freed: [const { MappedWord::new(0) }; Priority::COUNT],
            queue: Mutex::new(Queue::new()),
            taken: Claim::default(),
        })
    }

    /// Claims the file until the drop, so that only one purger manages it. Returns true if this
    /// purger has the claim.
    ///
    /// # Errors
    /// [`Error::Cloned`], [`Error::Truncated`], [`Error::Os`].
    pub fn claim(&self) -> Result<bool, Error> {
        self.begin()?;
        let mut claim = lock(&self.claim);
        if claim.is_some() {
            return Ok(true);
        }
        let description = Description::reopen(self.ledger.file().as_file())?;
        let is_taken = description.try_lock(Layout::PURGER)?;
        *claim = is_taken.then_some(description);
        Ok(is_taken)
    }

    /// Returns the file's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ledger.file().as_file().as_fd()
    }

    /// Returns the length of the data.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.ledger.layout().len()
    }

    /// Returns the length of a granule, the unit of purges.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        Bytes::new(self.ledger.layout().granule)
    }

    /// Returns the bytes that this purger freed, by priority.
    #[must_use]
    pub fn freed(&self) -> [Bytes; Priority::COUNT] {
        std::array::from_fn(|level| Bytes::new(self.freed[level].load(Ordering::Relaxed)))
    }

    pub(super) fn count(&self, priority: Priority, freed: Bytes) {
        self.freed[priority.place()].fetch_add(freed.get(), Ordering::Relaxed);
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Looks at the whole file, O(granules).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Cloned`], [`Error::Os`].
    pub fn look(&self) -> Result<Look, Error> {
        self.begin()?;
        let (ledger, layout) = (&*self.ledger, self.ledger.layout());
        let (len, needed) = (ledger.file().len()?, Bytes::new(layout.total));
        if len < needed {
            return Err(Error::Truncated { len, needed });
        }
        let bytes = |granules: u64| Bytes::new(granules.saturating_mul(layout.granule));
        let mut look = Look {
            quota: (layout.quota != NO_QUOTA).then(|| bytes(layout.quota)),
            purged: Bytes::new(ledger.field(Field::PurgedBytes).load(Ordering::Relaxed)),
            ..Look::default()
        };
        for holder in 0..ledger.holders() {
            if ledger.is_used(holder) && ledger.is_alive(holder)? {
                let process = ledger.field(Field::Process(holder)).load(Ordering::Relaxed) as u32;
                let pinned = bytes(ledger.pinned_by(holder)?);
                look.holders.push(Holder { process, pinned });
            }
        }
        if look.holders.is_empty() {
            return Ok(look);
        }
        for index in ledger.noted()?.iter().flat_map(|run| run.start()..run.end()) {
            let word = Word(ledger.word(index).load(Ordering::SeqCst));
            if !word.is_candidate() {
                continue;
            }
            if is_pinned(ledger, index)? {
                look.pinned_bytes = look.pinned_bytes + self.granule();
                continue;
            }
            let (level, key) = (usize::from(word.priority().get()), word.key().get());
            look.marked_bytes[level] = look.marked_bytes[level] + self.granule();
            let oldest = &mut look.oldest[level];
            *oldest = Some(oldest.map_or(key, |oldest| oldest.min(key)));
        }
        ledger.whole()?;
        Ok(look)
    }

    /// Purges like [`Shared::purge`](super::Shared::purge).
    ///
    /// # Errors
    /// As [`Shared::purge`](super::Shared::purge).
    pub fn purge(&self, target: Bytes, up_to: Priority) -> Result<Bytes, Error> {
        self.begin()?;
        let freed = purge::purge(&self.ledger, target, up_to)?;
        let levels = Priority::all().zip(freed);
        let sum = levels.fold(Bytes::ZERO, |sum, (priority, freed)| {
            self.count(priority, freed);
            sum + freed
        });
        self.ledger.whole()?;
        Ok(sum)
    }

    pub(super) fn begin(&self) -> Result<(), Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        self.ledger.whole()?;
        self.ledger.forget_backed();
        Ok(())
    }
}
