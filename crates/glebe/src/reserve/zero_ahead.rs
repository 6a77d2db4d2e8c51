//! [`start`] runs the thread that keeps granules (2 MiB) zeroed for first-class requests.
//!
//! The thread ends with the reserve and takes no lock.

use std::thread;
use std::time::Duration;

use super::shared::Weak;
use super::stats::Counter;
use super::ReserveCore;
use glebe_os::internal::sys::processes::thread::start as start_thread;

const IDLE: Duration = Duration::from_millis(20);

pub(super) fn start(weak: Weak<ReserveCore>) -> std::io::Result<()> {
    start_thread("glebe-zero", move || work(&weak))
}

fn work(weak: &Weak<ReserveCore>) {
    let mut zeros = Vec::new();
    while let Some(shared) = weak.upgrade() {
        let Ok(inner) = shared.get() else { return };
        zeros.resize(inner.lent().frames().page().bytes().as_usize(), 0);
        let more = step(inner, &zeros);
        drop(shared); // lets the reserve end during the sleep
        if !more {
            thread::sleep(IDLE);
        }
    }
}

fn step(inner: &ReserveCore, zeros: &[u8]) -> bool {
    let lent = inner.lent();
    if lent.zero_granules() >= inner.lender().zero_target() {
        return false;
    }
    let Some(granule) = lent.zero_candidate() else { return false };
    let zeroed = lent.zero_granule(granule, zeros);
    inner.counts().add(Counter::Evicted, zeroed.evicted);
    inner.counts().add(Counter::RejectedRecalled, zeroed.recalled);
    if zeroed.complete {
        inner.counts().add(Counter::ZeroedAhead, lent.granule_pages() as u64);
    }
    zeroed.complete
}
