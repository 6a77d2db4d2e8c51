//! [`ObjectPool`] inserts, reads, replaces and removes objects.
//!
//! Cost without a codec: an insert or remove usually locks one class, a read takes no lock.
//!
//! # Safety
//! Bytes of an object are borrowed only while the object is pinned.
#![allow(unsafe_code)]

use crate::entry::handle::Handle;
use crate::entry::word::Kind;
use crate::error::Error;
use crate::guard::Guard;
use crate::memory::account::NoRoom;
use crate::objects::{Pinned, Stored};
use crate::pool::ObjectPool;
use glebe_os::units::Bytes;

/// Other threads may take the room first.
const ROOM_ATTEMPTS: u32 = 256;

impl ObjectPool {
    #[inline]
    fn of(&self, handle: Handle) -> Result<(u32, u32), Error> {
        self.alive()?;
        if handle.pool() != self.number {
            return Err(Error::Foreign);
        }
        Ok((handle.index(), handle.generation()))
    }

    #[inline]
    fn checked_len(&self, len: usize) -> Result<(), Error> {
        self.alive()?;
        if len == 0 {
            return Err(Error::Empty);
        }
        if len as u64 > self.page.bytes().get() {
            return Err(Error::TooLong { len, page: self.page.bytes() });
        }
        Ok(())
    }

    /// Stores an object.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`], [`Error::Forked`], [`Error::Os`]; [`Error::Full`],
    /// [`Error::Space`]: no room.
    #[inline]
    pub fn insert(&self, bytes: &[u8]) -> Result<Handle, Error> {
        self.checked_len(bytes.len())?;
        let (index, named) = self.store(bytes, |stored| self.objects.insert(stored))?;
        self.compactor.drain_if_due(&self.objects);
        self.refit.look_if_due(&self.objects);
        Ok(Handle::new(self.number, named, index))
    }

    #[inline]
    fn store<T>(
        &self,
        object: &[u8],
        store: impl Fn(Stored<'_>) -> Result<T, NoRoom>,
    ) -> Result<T, Error> {
        let len = object.len();
        let with_room = |stored: Stored<'_>| {
            store(stored).or_else(|error| self.with_room(len, error, || store(stored)))
        };
        if self.coder.is_off() {
            return with_room(Stored::raw(object));
        }
        let pays = |coded| self.objects.classes.pays(coded, len);
        let done = self.coder.stored(object, pays, with_room);
        self.count_codec();
        done
    }

    #[cold]
    fn with_room<T>(
        &self,
        len: usize,
        error: NoRoom,
        again: impl Fn() -> Result<T, NoRoom>,
    ) -> Result<T, Error> {
        let (mut error, mut trimmed) = (error, false);
        for _ in 0..ROOM_ATTEMPTS {
            let is_os = matches!(error, NoRoom::Os(_));
            if is_os || !self.evictor.make_room(&self.objects, &mut trimmed) {
                break;
            }
            match again() {
                Ok(made) => return Ok(made),
                Err(other) => error = other,
            }
        }
        let account = &self.objects.memory.account;
        let (held, limit) = (Bytes::new(account.held()), Bytes::new(account.limit()));
        match error {
            NoRoom::Os(error) => Err(error.into()),
            NoRoom::Space if limit.get() == u64::MAX => Err(Error::Space),
            NoRoom::Limit | NoRoom::Space => Err(Error::Full { len, held, limit }),
        }
    }

    #[inline]
    pub(crate) fn pinned(&self, handle: Handle) -> Result<Pinned, Error> {
        let (index, named) = self.of(handle)?;
        // `ok_or` would make and drop an error on each call.
        let Some(pinned) = self.objects.pin(index, named) else { return Err(Error::Stale) };
        if !pinned.is_referenced {
            self.objects.memory.zspages.refer(pinned.entry.place().zspage);
        }
        Ok(pinned)
    }

    /// Returns the length of an object in bytes, before compression.
    ///
    /// # Errors
    /// See [`ObjectPool::get`].
    pub fn len_of(&self, handle: Handle) -> Result<usize, Error> {
        let (index, named) = self.of(handle)?;
        let entry = self.objects.entry(index, named).ok_or(Error::Stale)?;
        if entry.kind() != Kind::Short {
            return self.coder.len(entry, &[]);
        }
        let pinned = self.objects.pin(index, named).ok_or(Error::Stale)?;
        // SAFETY: nothing uses `stored` after the unpin below.
        let stored = unsafe { self.objects.bytes(&pinned) };
        let len = self.coder.len(pinned.entry, stored);
        self.objects.unpin(&pinned);
        len
    }

    /// Copies an object to the start of `buf` and returns its length. After an error, `buf` may
    /// hold anything.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], and those of [`ObjectPool::get`].
    #[inline]
    pub fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<usize, Error> {
        let pinned = self.pinned(handle)?;
        let done = self.copy_out(&pinned, buf);
        self.objects.unpin(&pinned);
        if pinned.entry.kind() != Kind::Raw {
            self.count_codec();
        }
        done
    }

    #[inline]
    pub(crate) fn copy_out(&self, pinned: &Pinned, buf: &mut [u8]) -> Result<usize, Error> {
        // SAFETY: only this call uses the slice, and its caller holds the pin.
        let stored = unsafe { self.objects.bytes(pinned) };
        if pinned.entry.kind() != Kind::Raw {
            return self.coder.decode(pinned.entry, stored, buf);
        }
        let (given, len) = (buf.len(), stored.len());
        let buf = buf.get_mut(..len).ok_or(Error::BufferTooSmall { given, len })?;
        buf.copy_from_slice(stored);
        Ok(len)
    }

    /// Lends an object's bytes: in place if uncompressed, else as a copy.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`]; [`Error::Codec`]: the stored bytes
    /// are damaged, or the codec lacks memory.
    pub fn get(&self, handle: Handle) -> Result<Guard<'_>, Error> {
        let pinned = self.pinned(handle)?;
        let guard = Guard::in_place(&self.objects, pinned);
        if pinned.entry.kind() == Kind::Raw {
            return Ok(guard);
        }
        let mut bytes = vec![0; self.coder.len(pinned.entry, &guard)?];
        let done = self.copy_out(&pinned, &mut bytes);
        drop(guard);
        self.count_codec();
        done?;
        Ok(Guard::copy(bytes))
    }

    /// Stores other bytes under the same handle. A concurrent reader gets the old or the new bytes.
    ///
    /// # Errors
    /// See [`ObjectPool::insert`] and [`ObjectPool::remove`]. The object is unchanged, unless it
    /// was evicted.
    pub fn replace(&self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        self.checked_len(bytes.len())?;
        let (index, named) = self.of(handle)?;
        self.objects.entry(index, named).ok_or(Error::Stale)?;
        let done = self.store(bytes, |stored| self.objects.replace(index, named, stored))?;
        self.after_gone();
        if done {
            Ok(())
        } else {
            Err(Error::Stale)
        }
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`].
    #[inline]
    pub fn remove(&self, handle: Handle) -> Result<(), Error> {
        let (index, named) = self.of(handle)?;
        if !self.objects.remove(index, named) {
            return Err(Error::Stale);
        }
        self.after_gone();
        Ok(())
    }

    pub(crate) fn restore(
        &self,
        (index, named): (u32, u32),
        pinned: &Pinned,
        stored: &[u8],
    ) -> bool {
        let Ok(len) = self.coder.len(pinned.entry, stored) else {
            self.objects.unpin(pinned);
            return false;
        };
        let stored = Stored::Bytes { kind: pinned.entry.kind(), bytes: stored, len };
        self.objects.recode(index, named, pinned, stored).unwrap_or(false)
    }
}
