//! Idle objects made smaller by a stronger codec, as far as a budget allows.
//!
//! *Idle* are the objects of a zspage of which none was read since it was last looked at. Zspages
//! are looked at in the order of their numbers, each call going on where the last one stopped. An
//! object is pinned, decoded, coded and stored anew while others read, replace or remove it: what
//! is not the same any more stays as it is. What goes to no smaller class does too, and is not
//! tried again before another object comes to its zspage.
//!
//! Cost: a decoding and a coding for each object that was not tried; a lock a zspage.

use std::time::Instant;

use super::account::NoRoom;
use super::codec::{Coder, Zstd};
use super::coding::code;
use super::entry::{Entry, Kind};
use super::error::Error;
use super::objects::Stored;
use super::options::Budget;
use super::pool::Pool;
use crate::sync::Ordering;
use crate::units::{Bytes, Pages};

/// What a call of [`Pool::recompress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recompressed {
    /// Objects that became smaller.
    pub objects: u64,
    /// Their stored bytes before.
    pub bytes_before: Bytes,
    /// Their stored bytes now.
    pub bytes_after: Bytes,
}

/// One call at work.
struct Call<'a> {
    coder: &'a Coder,
    budget: Budget,
    until: Option<Instant>,
    done: Recompressed,
    object: Vec<u8>,
}

impl Call<'_> {
    fn is_spent(&self, pool: &Pool) -> bool {
        match self.budget {
            Budget::Pages(pages) => {
                let saved = self.done.bytes_before.saturating_sub(self.done.bytes_after);
                saved >= pages.bytes(pool.page)
            }
            Budget::Time(_) => self.until.is_some_and(|until| Instant::now() >= until),
            Budget::All => false,
        }
    }
}

impl Pool {
    /// Codes idle objects again, by `zstd`: those of zspages that were looked at by an earlier
    /// call and of which nothing was read since. So the first call finds none. All calls on a pool
    /// have the same `zstd`, and the dictionary of the pool's own codec if that is zstd.
    ///
    /// It ends when the budget is spent, when every zspage was looked at, or when there is no room
    /// to store what became smaller.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for a budget of zero, [`Error::OtherZstd`], [`Error::Codec`] for a level
    /// that there is not, or [`Error::Full`] where the limit leaves no room for what `zstd` needs
    /// at work.
    pub fn recompress(&self, zstd: &Zstd, budget: Budget) -> Result<Recompressed, Error> {
        self.alive()?;
        let until = match budget {
            Budget::Pages(Pages::ZERO) => return Err(Error::NoBudget),
            Budget::Time(time) if time.is_zero() => return Err(Error::NoBudget),
            Budget::Time(time) => Instant::now().checked_add(time),
            Budget::Pages(_) | Budget::All => None,
        };
        let (coder, done) = (self.idle_coder(zstd)?, Recompressed::default());
        let object = vec![0; self.page.bytes().as_usize()];
        let mut call = Call { coder, budget, until, done, object };
        let (_, end) = self.objects.memory.zspages.made();
        for _ in 0..end {
            let zspage = self.idle_hand.load(Ordering::Relaxed) as u32 % end;
            if call.is_spent(self) || !self.recompress_zspage(&mut call, zspage) {
                break;
            }
            self.idle_hand.store((zspage + 1).into(), Ordering::Relaxed);
        }
        self.count_codec();
        Ok(call.done)
    }

    /// The coder of idle objects. The first time there must be room for it.
    fn idle_coder(&self, zstd: &Zstd) -> Result<&Coder, Error> {
        if let Some(coder) = self.coding.idle(zstd)? {
            return Ok(coder);
        }
        let coder = self.coding.make_idle(zstd)?;
        let (account, bytes) = (&self.objects.memory.account, coder.bytes());
        let mut trimmed = false;
        while !account.charge(bytes) {
            if !self.make_room(&mut trimmed) {
                let (held, limit) = (Bytes::new(account.held()), Bytes::new(account.limit()));
                return Err(Error::Full { len: bytes as usize, held, limit });
            }
        }
        if !self.coding.keep_idle(zstd, coder) {
            account.release(bytes);
        }
        // That of another thread is as good, if it is the same.
        self.coding.idle(zstd)?.ok_or(Error::OtherZstd)
    }

    /// Codes the objects of a zspage again, if it is idle; whether it may go on.
    fn recompress_zspage(&self, call: &mut Call<'_>, zspage: u32) -> bool {
        let memory = &self.objects.memory;
        let about = memory.zspages.about(zspage);
        let Some(class) = self.objects.classes.get(about.class).filter(|_| about.exists) else {
            return true;
        };
        let found = class.lock().idle_objects(memory, zspage);
        let before = call.done.objects;
        let mut goes_on = true;
        for (index, entry) in found {
            goes_on = !call.is_spent(self) && self.recompress_one(call, index, entry).is_ok();
            if !goes_on {
                // The rest is for the next call.
                class.lock().untry(memory, zspage);
                break;
            }
        }
        if call.done.objects > before {
            self.after_gone();
        }
        goes_on
    }

    /// Codes one object again, if that pays and it still is what was seen.
    fn recompress_one(&self, call: &mut Call<'_>, index: u32, seen: Entry) -> Result<(), NoRoom> {
        let is_final = match seen.kind() {
            Kind::Free | Kind::Filled | Kind::Wide => true,
            Kind::Zstd | Kind::ShortZstd => !self.coding.is_zstd(),
            Kind::Raw | Kind::Lz4 | Kind::ShortLz4 => false,
        };
        if is_final {
            return Ok(());
        }
        let named = self.objects.memory.entries.named(index, seen);
        let Some(pinned) = self.objects.pin(index, named) else { return Ok(()) };
        let was = pinned.entry.len();
        // What is damaged stays for whoever reads it.
        let Ok(len) = self.copy_out(&pinned, &mut call.object) else {
            self.objects.unpin(&pinned);
            return Ok(());
        };
        let object = &call.object[..len];
        let pays = |len| self.pays(len, was);
        let recode = |stored: Stored<'_>| match stored {
            Stored::Bytes { kind: Kind::Zstd | Kind::ShortZstd, bytes, .. } => {
                let done = self.objects.recode(index, named, &pinned, stored)?;
                Ok(done.then_some(bytes.len()))
            }
            _ => {
                self.objects.unpin(&pinned);
                Ok(None)
            }
        };
        if let Some(len) = code(call.coder, object, pays, recode)? {
            let done = &mut call.done;
            done.objects += 1;
            done.bytes_before = done.bytes_before + Bytes::new(was as u64);
            done.bytes_after = done.bytes_after + Bytes::new(len as u64);
        }
        Ok(())
    }
}
