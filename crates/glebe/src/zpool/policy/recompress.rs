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

use crate::sync::{AtomicU64, Ordering};
use crate::units::{Bytes, PageSize};
use crate::zpool::codec::coding::{code, Coding};
use crate::zpool::codec::{Coder, Zstd};
use crate::zpool::entry::word::{Entry, Kind};
use crate::zpool::error::Error;
use crate::zpool::memory::account::NoRoom;
use crate::zpool::objects::{Objects, Stored};
use crate::zpool::options::Budget;
use crate::zpool::policy::compact::Compactor;
use crate::zpool::policy::evict::Evictor;

/// What a call of [`Pool::recompress`](crate::zpool::Pool::recompress) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recompressed {
    /// Objects that became smaller.
    pub objects: u64,
    /// Their stored bytes before.
    pub bytes_before: Bytes,
    /// Their stored bytes now.
    pub bytes_after: Bytes,
}

/// What of a pool it works on.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) coding: &'a Coding,
    pub(crate) evictor: &'a Evictor,
    pub(crate) compactor: &'a Compactor,
    pub(crate) page: PageSize,
}

/// One call at work.
struct Call<'a> {
    parts: Parts<'a>,
    coder: &'a Coder,
    budget: Budget,
    until: Option<Instant>,
    done: Recompressed,
    object: Vec<u8>,
}

impl Call<'_> {
    fn is_spent(&self) -> bool {
        match self.budget {
            Budget::Pages(pages) => {
                let saved = self.done.bytes_before.saturating_sub(self.done.bytes_after);
                saved >= pages.bytes(self.parts.page)
            }
            Budget::Time(_) => self.until.is_some_and(|until| Instant::now() >= until),
            Budget::All => false,
        }
    }
}

/// Where the search for idle objects goes on.
#[derive(Debug)]
pub(crate) struct Recompressor {
    /// The zspage.
    hand: AtomicU64,
}

impl Recompressor {
    pub(crate) fn new() -> Self {
        Self { hand: AtomicU64::new(0) }
    }

    /// Codes idle objects of a pool again, as far as the budget allows.
    ///
    /// # Errors
    /// Those of [`Pool::recompress`](crate::zpool::Pool::recompress).
    pub(crate) fn run(
        &self,
        parts: Parts<'_>,
        zstd: &Zstd,
        budget: Budget,
    ) -> Result<Recompressed, Error> {
        let until = budget.until()?;
        let (coder, done) = (idle_coder(parts, zstd)?, Recompressed::default());
        let object = vec![0; parts.page.bytes().as_usize()];
        let mut call = Call { parts, coder, budget, until, done, object };
        let (_, end) = parts.objects.memory.zspages.made();
        for _ in 0..end {
            let zspage = self.hand.load(Ordering::Relaxed) as u32 % end;
            if call.is_spent() || !call.zspage(zspage) {
                break;
            }
            self.hand.store((zspage + 1).into(), Ordering::Relaxed);
        }
        Ok(call.done)
    }
}

/// The coder of idle objects. The first time there must be room for it.
fn idle_coder<'a>(parts: Parts<'a>, zstd: &Zstd) -> Result<&'a Coder, Error> {
    let Parts { objects, coding, evictor, .. } = parts;
    if let Some(coder) = coding.idle(zstd)? {
        return Ok(coder);
    }
    let coder = coding.make_idle(zstd)?;
    let (account, bytes) = (&objects.memory.account, coder.bytes());
    let mut trimmed = false;
    while !account.charge(bytes) {
        if !evictor.make_room(objects, &mut trimmed) {
            let (held, limit) = (Bytes::new(account.held()), Bytes::new(account.limit()));
            return Err(Error::Full { len: bytes as usize, held, limit });
        }
    }
    if !coding.keep_idle(zstd, coder) {
        account.release(bytes);
    }
    // That of another thread is as good, if it is the same.
    coding.idle(zstd)?.ok_or(Error::OtherZstd)
}

impl Call<'_> {
    /// Codes the objects of a zspage again, if it is idle; whether it may go on.
    fn zspage(&mut self, zspage: u32) -> bool {
        let objects = self.parts.objects;
        let memory = &objects.memory;
        let about = memory.zspages.about(zspage);
        let Some(class) = objects.classes.get(about.class).filter(|_| about.exists) else {
            return true;
        };
        let found = class.lock().idle_objects(memory, zspage);
        let before = self.done.objects;
        let mut goes_on = true;
        for (index, entry) in found {
            goes_on = !self.is_spent() && self.object(index, entry).is_ok();
            if !goes_on {
                // The rest is for the next call.
                class.lock().untry(memory, zspage);
                break;
            }
        }
        if self.done.objects > before {
            self.parts.compactor.after_gone(objects);
        }
        goes_on
    }

    /// Codes one object again, if that pays and it still is what was seen.
    fn object(&mut self, index: u32, seen: Entry) -> Result<(), NoRoom> {
        let Parts { objects, coding, .. } = self.parts;
        let is_final = match seen.kind() {
            Kind::Free | Kind::Filled | Kind::Wide => true,
            Kind::Zstd | Kind::ShortZstd => !coding.is_zstd(),
            Kind::Raw | Kind::Lz4 | Kind::ShortLz4 => false,
        };
        if is_final {
            return Ok(());
        }
        let named = objects.memory.entries.named(index, seen);
        let Some(pinned) = objects.pin(index, named) else { return Ok(()) };
        let was = pinned.entry.len();
        // What is damaged stays for whoever reads it.
        let decode = |stored: &[u8]| coding.decode(pinned.entry, stored, &mut self.object);
        let Ok(len) = objects.with_bytes(&pinned, decode) else {
            objects.unpin(&pinned);
            return Ok(());
        };
        let object = &self.object[..len];
        let pays = |len| objects.classes.pays(len, was);
        let recode = |stored: Stored<'_>| match stored {
            Stored::Bytes { kind: Kind::Zstd | Kind::ShortZstd, bytes, .. } => {
                let done = objects.recode(index, named, &pinned, stored)?;
                Ok(done.then_some(bytes.len()))
            }
            _ => {
                objects.unpin(&pinned);
                Ok(None)
            }
        };
        if let Some(len) = code(self.coder, object, pays, recode)? {
            let done = &mut self.done;
            done.objects += 1;
            done.bytes_before = done.bytes_before + Bytes::new(was as u64);
            done.bytes_after = done.bytes_after + Bytes::new(len as u64);
        }
        Ok(())
    }
}
