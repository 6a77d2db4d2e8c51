//! What a reserve stands on: how much memory there is, from where, in which runs, and where each
//! byte of it lies. Of a reserve without room that is what it was made of.

use super::error::Error;
use super::memory::Memory;
use super::{Inner, Reserve};
use crate::contig::{Certificate, Drift, HeldBy, Location, Source};
use crate::error::OsError;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// What a reserve stands on, all in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footing {
    /// Where the memory came from: [`Source::Divided`] if not all from one source.
    pub source: Source,
    /// What holds it in its frames: [`HeldBy::Nothing`] if not one thing holds all of it.
    pub held_by: HeldBy,
    /// How much there is.
    pub len: Bytes,
}

impl Inner {
    /// See [`Reserve::locate`].
    pub(super) fn locate(&self, offset: Bytes) -> Option<Location> {
        let contig = self.lent().frames().contig();
        let fixed = || contig.query(contig.mapping().addr().checked_add(offset.as_usize())?);
        self.memory.as_ref().map_or_else(fixed, |memory| memory.locate(offset))
    }

    /// See [`Reserve::footing`].
    pub(super) fn footing(&self) -> Footing {
        let contig = self.lent().frames().contig();
        let (source, held_by, len) = (contig.source(), contig.held_by(), contig.len());
        self.memory.as_ref().map_or(Footing { source, held_by, len }, Memory::footing)
    }
}

impl Reserve {
    /// Pages in the reserve now; in a forked child, those with which it was made.
    #[must_use]
    pub fn len(&self) -> Pages {
        let memory = self.inner.get().ok().and_then(|inner| inner.memory.as_ref());
        let made = || self.contig.len().pages_down(page_size());
        memory.map_or_else(made, Memory::present)
    }

    /// The most that the reserve may be: its length, unless it was built with
    /// [`Options::room`](super::Options::room).
    #[must_use]
    pub fn room(&self) -> Bytes {
        let memory = self.inner.get().ok().and_then(|inner| inner.memory.as_ref());
        memory.map_or(self.contig.len(), Memory::room)
    }

    /// All that is known of the memory as it is now: its runs, by position.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn certificate(&self) -> Result<Certificate, Error> {
        let memory = self.inner.get()?.memory.as_ref();
        Ok(memory.map_or_else(|| self.contig.certificate(), Memory::certificate))
    }

    /// What the reserve stands on now, in few words.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn footing(&self) -> Result<Footing, Error> {
        Ok(self.inner.get()?.footing())
    }

    /// What is known of the byte at `offset` from the start of the reserve; `None` where no memory
    /// is.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn locate(&self, offset: Bytes) -> Result<Option<Location>, Error> {
        Ok(self.inner.get()?.locate(offset))
    }

    /// Reads the frames of the memory as it is now again; see
    /// [`Contig::verify`](crate::contig::Contig::verify).
    ///
    /// # Errors
    /// [`Error::Forked`], and [`Error::Os`] where the frames cannot be read.
    pub fn verify(&self) -> Result<Vec<Drift>, Error> {
        let memory = self.inner.get()?.memory.as_ref();
        let all: Result<_, OsError> = memory.map_or_else(|| self.contig.verify(), Memory::verify);
        Ok(all?)
    }
}
