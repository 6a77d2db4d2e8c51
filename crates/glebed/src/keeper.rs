//! The keeper takes ended leases back, and fills the [`Stock`].
//!
//! Locks: `filling`, while a brick moves from the reserve to the stock; then `stock`, for a step.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glebe::internal::sync::{MappedWord, Ordering};
use glebe::internal::ClosedBlock;
use glebe::reserve::{Request, Reserve};
use glebe::units::Pages;

use crate::stats::{Counter, Counts};
use crate::stock::Stock;

/// Time between two attempts to fill the stock from a reserve that has no more.
const SHORT: Duration = Duration::from_millis(100);
/// Time between two looks at the reserve's length.
const REGROW: Duration = Duration::from_secs(1);
const REGROW_MAX: Duration = Duration::from_secs(60);
/// Most bricks that one step takes back: about 20 ms. Nobody else can change the pool meanwhile.
const STEP: usize = 64;

#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) stock: Mutex<Stock>,
    /// Held while memory moves between stock and reserve.
    pub(crate) filling: Mutex<()>,
    /// Bricks that the stock shall have.
    pub(crate) target: usize,
    /// Bytes of leases that other threads make.
    pub(crate) making: MappedWord,
    /// Bytes set aside for leases, and not taken yet.
    pub(crate) placed: MappedWord,
    /// Pages that left the reserve and shall be replaced.
    pub(crate) lost: MappedWord,
    /// Bytes on the way back from clients.
    pub(crate) returning: MappedWord,
    pub(crate) is_ending: MappedWord,
    pub(crate) counts: Counts,
}

impl Kept {
    pub(crate) fn filling(&self) -> MutexGuard<'_, ()> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes on the way back, until they are `added` no more.
    pub(crate) fn under_way(&self, bytes: u64, added: bool) {
        match added {
            true => self.returning.fetch_add(bytes, Ordering::AcqRel),
            false => self.returning.fetch_sub(bytes, Ordering::AcqRel),
        };
    }

    pub(crate) fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn run(reserve: &Reserve, kept: &Arc<Kept>, ended: &Receiver<Vec<ClosedBlock>>) {
    let mut wait = Some(Duration::ZERO);
    loop {
        let mut blocks = match next(ended, wait) {
            Ok(blocks) => blocks,
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        blocks = blocks.into_iter().flat_map(ClosedBlock::divided).collect();
        while !blocks.is_empty() {
            take_back(kept, blocks.split_off(blocks.len().saturating_sub(STEP)));
        }
        wait = filled(reserve, kept);
    }
}

fn next(
    ended: &Receiver<Vec<ClosedBlock>>,
    wait: Option<Duration>,
) -> Result<Vec<ClosedBlock>, RecvTimeoutError> {
    match wait {
        Some(wait) => ended.recv_timeout(wait),
        None => Ok(ended.recv()?),
    }
}

fn take_back(kept: &Kept, blocks: Vec<ClosedBlock>) {
    let pages: u64 = blocks.iter().map(|block| block.pages().get()).sum();
    let lost = ClosedBlock::reopen(blocks);
    kept.counts.add(Counter::Renewed, pages - lost.get());
    kept.counts.add(Counter::Lost, lost.get());
    kept.lost.fetch_add(lost.get(), Ordering::AcqRel);
    kept.under_way(Pages::new(pages).bytes(glebe::page_size()).get(), false);
}

/// Adds a brick to the stock. Returns when to look again; `None` if the stock is full.
fn filled(reserve: &Reserve, kept: &Kept) -> Option<Duration> {
    let _filling = kept.filling();
    if kept.stock().len() >= kept.target || kept.is_ending.load(Ordering::Acquire) != 0 {
        return None;
    }
    match ClosedBlock::of(reserve, Request::new(Pages::new(1)).any()) {
        Ok(block) => {
            kept.stock().put(block);
            Some(Duration::ZERO)
        }
        // First class has all the rest.
        Err(_) => Some(SHORT),
    }
}

/// Replaces pages that left the reserve, as far as the machine has memory. A search for adjacent
/// pages may take seconds, so it has its own thread.
pub(crate) fn grow(reserve: &Reserve, kept: &Kept) {
    let (mut step, mut rest) = (u64::MAX, REGROW);
    while kept.is_ending.load(Ordering::Acquire) == 0 {
        let missing = kept.lost.load(Ordering::Acquire);
        if missing == 0 {
            (step, rest) = (u64::MAX, REGROW);
        } else if reserve.grow(Pages::new(missing.min(step)).bytes(glebe::page_size())).is_ok() {
            kept.lost.fetch_sub(missing.min(step), Ordering::AcqRel);
            continue;
        } else {
            // Tries half of it next. Rests longer, because others wait for the pool's lock.
            step = (missing.min(step) / 2).max(1);
            rest = (rest * 2).min(REGROW_MAX);
        }
        std::thread::park_timeout(rest);
    }
}
