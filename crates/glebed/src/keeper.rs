//! The keeper takes ended leases back, and fills the [`Stock`].
//!
//! Locks: `filling`, while a brick moves from the reserve to the stock; then `stock`, for a step.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glebe::internal::sync::{MappedWord, Ordering};
use glebe::internal::ClosedBlock;
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};

use crate::growth::{Growth, Task};
use crate::stats::{Counter, Counts};
use crate::stock::Stock;

/// Time between two attempts to fill the stock from a reserve that has no more.
const SHORT: Duration = Duration::from_millis(100);
/// Bytes that one step takes back, but at least one block: about 20 ms. Nobody else can change the
/// pool meanwhile.
const STEP: u64 = 128 << 20;

#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) stock: Mutex<Stock>,
    /// Held while memory moves between stock and reserve.
    pub(crate) filling: Mutex<()>,
    /// Bricks that the stock shall have.
    pub(crate) target: usize,
    /// Bytes of leases that other threads make.
    pub(crate) making: MappedWord,
    /// Pages that left the reserve and shall be replaced.
    pub(crate) lost: MappedWord,
    /// Bytes on the way back from clients, and lost bytes until an attempt to replace them.
    pub(crate) returning: MappedWord,
    pub(crate) is_ending: MappedWord,
    pub(crate) counts: Counts,
    pub(crate) growth: Growth,
    pub(crate) brick: Bytes,
}

impl Kept {
    /// Returns the state of a daemon without leases, which zeroes nothing ahead.
    pub(crate) fn of_growth(growth: Growth, brick: Bytes) -> Self {
        let none = || MappedWord::new(0);
        Self {
            stock: Mutex::new(Stock::default()),
            filling: Mutex::new(()),
            target: 0,
            making: none(),
            lost: none(),
            returning: none(),
            is_ending: none(),
            counts: Counts::new(),
            growth,
            brick,
        }
    }

    pub(crate) fn filling(&self) -> MutexGuard<'_, ()> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the bytes on the way back, or subtracts from them.
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

pub(crate) fn run(
    reserve: &Reserve,
    kept: &Arc<Kept>,
    ended: &Receiver<Vec<ClosedBlock>>,
    grower: &Sender<Task>,
) {
    let mut wait = Some(Duration::ZERO);
    loop {
        let blocks = match next(ended, wait) {
            Ok(blocks) => blocks,
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        take_back_now(kept, blocks.into_iter().flat_map(ClosedBlock::divided).collect(), grower);
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

/// Takes memory back in steps. The caller has counted it as under way.
pub(crate) fn take_back_now(kept: &Kept, mut blocks: Vec<ClosedBlock>, grower: &Sender<Task>) {
    let step = (STEP / kept.brick.get()).max(1) as usize;
    while !blocks.is_empty() {
        take_back(kept, blocks.split_off(blocks.len().saturating_sub(step)), grower);
    }
}

fn take_back(kept: &Kept, blocks: Vec<ClosedBlock>, grower: &Sender<Task>) {
    let pages: u64 = blocks.iter().map(|block| block.pages().get()).sum();
    let lost = ClosedBlock::reopen(blocks);
    let (count, base) = (lost.count(), glebe::page_size());
    kept.counts.add(Counter::Renewed, pages - count.get());
    // The grower counts lost pages as under way until it has tried to replace them.
    let is_passed = count > Pages::ZERO && grower.send(Task::Lose(lost)).is_ok();
    let here = pages - if is_passed { count.get() } else { 0 };
    kept.under_way(Pages::new(here).bytes(base).get(), false);
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
