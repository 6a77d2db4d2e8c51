//! [`Movers`]: the pools whose pages are moved before first class takes them.
//!
//! Lock: the list's. First class tries it and does without where it is taken. Cost: one look at
//! each page of a run, and the copies.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::Packed;
use crate::reserve::lender::{is_packed, Lender};
use crate::sync::{write, RwLock};

/// See the module.
#[derive(Debug, Default)]
pub(in crate::reserve) struct Movers(RwLock<Vec<Weak<Packed>>>);

impl Movers {
    /// Has pages of a pool moved as long as it lives.
    pub(in crate::reserve) fn add(&self, packed: &Arc<Packed>) {
        let mut movers = write(&self.0);
        movers.retain(|other| other.strong_count() > 0);
        movers.push(Arc::downgrade(packed));
    }

    /// Moves the pages of those pools out of a run that first class is about to take, as long as
    /// others can be had. Waits for nobody.
    #[cold]
    pub(in crate::reserve) fn move_out(&self, lender: &Lender, run: &Range<usize>) {
        let alive = match self.0.try_read() {
            Ok(movers) => movers.iter().filter_map(Weak::upgrade).collect::<Vec<_>>(),
            Err(_) => return,
        };
        for page in run.clone() {
            let Some((_, _, meta)) = lender.lent().holds(page, is_packed) else { continue };
            let Some(mover) = alive.iter().find(|packed| packed.is_of(&meta)) else { continue };
            if !mover.move_out(lender, &meta, run) {
                return;
            }
        }
    }
}
