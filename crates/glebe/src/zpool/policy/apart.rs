//! What a pool holds and cannot charge where it takes it: the state of codecs, small vectors of
//! classes and tables.
//!
//! A codec's state is charged by whoever coded or decoded when it grew: that of one thread when the
//! pool is made, later that of each thread more that codes at the same time, past the limit if need
//! be, and then something is shed. Vectors are counted whenever the pages in use have become a
//! sixteenth more or fewer, and charged somewhat ahead, so that in between no more is there than is
//! charged. Unit: bytes. Cost: two loads an operation, two more one that has to do with a codec; a
//! count is a walk over the classes.

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::zpool::codec::Coder;
use crate::zpool::objects::Objects;
use crate::zpool::policy::evict::Evictor;
use crate::zpool::policy::refit::Refit;

/// What part of the pages in use more or fewer makes it count again, and how many at least.
const CHANGE_PARTS: u64 = 16;
const CHANGE_MIN: u64 = 64;
/// Charged ahead: so much, and a part of what there is.
const AHEAD: u64 = 4 << 10;
const AHEAD_PARTS: u64 = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Apart {
    /// Between which numbers of pages in use nothing is looked at.
    low: AtomicU64,
    high: AtomicU64,
    /// Bytes of vectors that are charged.
    charged: Mutex<u64>,
}

impl Apart {
    pub(crate) fn new() -> Self {
        let word = AtomicU64::new;
        Self { low: word(0), high: word(0), charged: Mutex::new(0) }
    }

    /// Looks after what follows the number of pages in use: this account, and the table.
    #[inline]
    pub(crate) fn look_if_due(&self, objects: &Objects, refit: &Refit) {
        let used = objects.memory.pages.used();
        if used < self.low.load(Ordering::Relaxed) || used >= self.high.load(Ordering::Relaxed) {
            self.look(objects, refit, used);
        }
    }

    #[cold]
    fn look(&self, objects: &Objects, refit: &Refit, used: u64) {
        refit.look_if_due(objects, used);
        let change = (used / CHANGE_PARTS).max(CHANGE_MIN);
        let (low, high) = refit.bounds();
        self.low.store(low.max(used.saturating_sub(change)), Ordering::Relaxed);
        self.high.store(high.min(used + change), Ordering::Relaxed);
        self.count(objects);
    }

    /// Charges vectors for what they are now and soon will be. Where there is no room that waits
    /// until the next count: what was charged ahead before lasts until then.
    fn count(&self, objects: &Objects) {
        let Ok(mut charged) = self.charged.try_lock() else { return };
        let account = &objects.memory.account;
        let is = vector_bytes(objects);
        let wanted = is + is / AHEAD_PARTS + AHEAD;
        if wanted <= *charged || account.charge(wanted - *charged) {
            account.release(charged.saturating_sub(wanted));
            *charged = wanted;
        }
    }

    /// Bytes of small vectors that are there, and that are charged.
    pub(crate) fn vectors(&self, objects: &Objects) -> (u64, u64) {
        let charged = lock(&self.charged);
        (vector_bytes(objects), *charged)
    }
}

/// Bytes of small vectors now.
fn vector_bytes(objects: &Objects) -> u64 {
    let memory = &objects.memory;
    let tables = memory.pages.held_bytes() + memory.entries.held().1 + memory.zspages.held().1;
    let classes = objects.classes.all().map(|class| class.lock().held_bytes());
    tables + classes.sum::<u64>()
}

/// Charges the state of codecs, which grew, and sheds what is too much then. The caller pins
/// nothing.
#[cold]
pub(crate) fn charge_codec(objects: &Objects, coder: &Coder, evictor: &Evictor) {
    let account = &objects.memory.account;
    let (before, now) = coder.count();
    account.charge_past(now.saturating_sub(before));
    account.release(before.saturating_sub(now));
    let mut trimmed = false;
    while account.held() > account.limit() && evictor.make_room(objects, &mut trimmed) {}
}
