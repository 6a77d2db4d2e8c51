//! [`Purger`]: a look at a file of others', and purges of it.
//!
//! It maps what says how things stand, not the data, and does not join: it keeps no volatility
//! alive. What the file says is taken as a hint of what to purge, and never as a place or a length.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::guard::Guard;
use super::layout::{Field, NO_QUOTA};
use super::ledger::Ledger;
use super::options::read_header;
use super::protocol::is_pinned;
use super::purge;
use super::word::Word;
use crate::sync::Ordering;
use crate::sys::atfork;
use crate::sys::memory_file::MemoryFile;
use crate::units::Bytes;
use crate::volatile::{Error, Priority};

/// Priorities.
const LEVELS: usize = Priority::HIGHEST.get() as usize + 1;

/// Whoever purges a file that others use.
#[derive(Debug)]
pub struct Purger {
    // Before what it watches.
    _guard: Guard,
    ledger: Arc<Ledger>,
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
    /// What a purge could free of each priority: marked, present, and pinned by nobody.
    pub marked_bytes: [Bytes; LEVELS],
    /// The first key of each priority's order, where there is anything. The keys of several files
    /// are comparable where their processes share a clock: the lower goes first.
    pub oldest: [Option<u64>; LEVELS],
    /// The processes that use the file now.
    pub holders: Vec<Holder>,
    /// What each of them may have pinned; none without a quota.
    pub quota: Option<Bytes>,
    /// What purges have freed since the file was made.
    pub purged: Bytes,
}

impl Purger {
    /// Opens the file at `path`, which is no symbolic link.
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
        Ok(Self { _guard: Guard::new(&ledger, None, false)?, ledger })
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

    /// Looks at all of the file, O(granules).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Cloned`]; what the kernel refuses.
    pub fn look(&self) -> Result<Look, Error> {
        self.begin()?;
        let (ledger, layout) = (&*self.ledger, self.ledger.layout());
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
        for index in ledger.noted()?.iter().flat_map(|run| run.start()..run.end()) {
            let word = Word(ledger.word(index).load(Ordering::SeqCst));
            if !word.is_candidate() || is_pinned(ledger, index)? {
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
        self.ledger.whole()?;
        Ok(freed)
    }

    fn begin(&self) -> Result<(), Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        self.ledger.whole()?;
        // The last of the file's users may have taken tables out.
        self.ledger.forget_backed();
        Ok(())
    }
}
