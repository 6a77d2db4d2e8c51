//! Purges shared memory that `glebe_vrange` made volatile, on request or from a thread when memory
//! is short. The kernel never takes such memory.
//!
//! The thread has a reclaimer with one budget. When the reclaimer lowers the budget, the thread
//! purges the difference. A new budget then replaces the lowered one, so that the reclaimer expects
//! no more bytes than the purge freed. The thread starts on request, runs until the process ends,
//! and waits without a lock.
#![allow(unsafe_code)] // exported names

use std::ffi::c_int;
use std::thread::{sleep, Builder};
use std::time::Duration;

use glebe::error::OsError;
use glebe::reclaim::{Budget, Policy, ReclaimError, Reclaimer};
use glebe::units::Bytes;

use super::adopted::{begin_reclaim, end_reclaim, held, purge};
use super::claims::{check_fork, Inside};
use super::regions::follow_forks;
use crate::abi::*;
use crate::boundary::{call, Out};
use crate::failure::Failure;

const PAUSE_BLIND: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(60);
/// A budget of more bytes than any machine has.
const ANY: Bytes = Bytes::new(1 << 62);

#[no_mangle]
pub extern "C" fn glebe_vrange_purge(target_bytes: u64, purged_bytes: Out<u64>) -> c_int {
    call(|| {
        check_fork()?;
        let _inside = Inside::enter()?;
        Ok(purged_bytes.set(purge(Bytes::new(target_bytes))?.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_vrange_reclaim(margin_bytes: u64) -> c_int {
    call(|| {
        follow_forks()?;
        let _inside = Inside::enter()?;
        if !begin_reclaim() {
            return Err(ReclaimError::Started.into());
        }
        start(margin_bytes).inspect_err(|_| end_reclaim())?;
        Ok(GLEBE_OK)
    })
}

fn start(margin_bytes: u64) -> Result<(), Failure> {
    let policy = match margin_bytes {
        0 => Policy::default(),
        bytes => Policy::default().margin(Bytes::new(bytes)),
    };
    let reclaimer = Reclaimer::new(policy)?;
    let budget = Budget::new(ANY);
    reclaimer.add(&budget)?;
    let thread = Builder::new().name("glebe-vrange".to_owned());
    let started = thread.spawn(move || work(&reclaimer, budget));
    started.map_err(|e| ReclaimError::from(OsError::new("clone", "a thread that purges", e)))?;
    Ok(())
}

fn work(reclaimer: &Reclaimer, mut budget: Budget) {
    loop {
        match reclaimer.wait(WAIT).and_then(|()| look(reclaimer, &budget)) {
            Ok(Some(new)) => budget = new,
            Ok(None) => {}
            Err(_) => sleep(PAUSE_BLIND),
        }
    }
}

/// Purges the bytes that exceed the budget. If the purge freed memory, returns a new budget that
/// replaces the lowered one.
fn look(reclaimer: &Reclaimer, budget: &Budget) -> Result<Option<Budget>, ReclaimError> {
    budget.set_held(held());
    reclaimer.poll()?;
    let missing = budget.held().saturating_sub(budget.allowed());
    if missing == Bytes::ZERO || !frees(missing) {
        return Ok(None);
    }
    let new = Budget::new(ANY);
    reclaimer.add(&new)?;
    Ok(Some(new))
}

fn frees(target: Bytes) -> bool {
    let Ok(_inside) = Inside::enter() else { return false };
    purge(target).is_ok_and(|freed| freed > Bytes::ZERO)
}
