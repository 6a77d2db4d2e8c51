//! [`Purger`]: a look at a file of others', and purges of it.
//!
//! It maps what says how things stand, not the data, and does not join: it keeps no volatility
//! alive. What the file says is taken as a hint of what to purge, and never as a place or a length.

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
use crate::sync::{lock, MappedWord, Mutex, Ordering};
use crate::sys::atfork;
use crate::sys::claim::Claim;
use crate::sys::memory_file::MemoryFile;
use crate::sys::ofd_lock::Description;
use crate::units::Bytes;
use crate::volatile::{Error, Priority};

/// Whoever purges a file that others use.
#[derive(Debug)]
pub struct Purger {
    // Before what it watches.
    _guard: Guard,
    ledger: Arc<Ledger>,
    /// Holds the lock of the file's one purger.
    claim: Mutex<Option<Description>>,
    /// Bytes that this purger freed.
    freed: ByLevel<MappedWord>,
    pub(super) queue: Mutex<Queue>,
    /// Which reclaimer of this process has it.
    pub(crate) taken: Claim,
}

/// A process that uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The number that it gave itself: a hint, of its own PID namespace.
    pub process: u32,
    /// What it has pinned, in whole granules.
    pub pinned: Bytes,
}

/// How a file stands, at one moment of each granule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Look {
    /// What a purge could free of each priority: marked, present, and pinned by nobody. Nothing
    /// where no process uses the file.
    pub marked_bytes: [Bytes; Priority::COUNT],
    /// The first key of each priority's order, where there is anything. The keys of several files
    /// are comparable where their processes share a clock: the lower goes first.
    pub oldest: [Option<u64>; Priority::COUNT],
    /// What only pins keep from being purged: marked, present, and pinned by some process.
    pub pinned_bytes: Bytes,
    /// The processes that use the file now.
    pub holders: Vec<Holder>,
    /// What each of them may have pinned; none without a quota.
    pub quota: Option<Bytes>,
    /// What purges have freed since the file was made.
    pub purged: Bytes,
}

impl Purger {
    /// Opens the file at `path`, which is no symbolic link, but may be the name of a descriptor,
    /// `/proc/PID/fd/N`.
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

    /// Takes the file for this purger, until it is dropped; whether it has it. For programs that
    /// look after the memory of others, of which two would purge too much. Does not exclude
    /// purges of those who did not ask.
    ///
    /// # Errors
    /// [`Error::Cloned`], [`Error::Truncated`]; what the kernel refuses.
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

    /// The file.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ledger.file().as_file().as_fd()
    }

    /// Bytes of data.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.ledger.layout().len()
    }

    /// What is purged as a whole.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        Bytes::new(self.ledger.layout().granule)
    }

    /// What this purger has freed so far, of each priority.
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

    /// Looks at all of the file, O(granules).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Cloned`]; what the kernel refuses.
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

    /// As [`Shared::purge`](super::Shared::purge). Where no process uses the file nothing of it is
    /// volatile, and nothing is purged.
    ///
    /// # Errors
    /// As there.
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
        // The last of the file's users may have taken tables out.
        self.ledger.forget_backed();
        Ok(())
    }
}
