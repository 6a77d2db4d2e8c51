#![allow(unsafe_code)] // Safety: each module states its reasons.

mod cache;
mod files;
mod full;
mod hostile;
mod kills;
mod lost;
mod over;
mod processes;
mod program;
mod threads;

use std::ops::Range;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_volatile::{Order, Priority, Purged, Purger, Shared};

fn at(granule: u64) -> Bytes {
    Pages::new(granule).bytes(page_size())
}

fn range(start: u64, len: u64) -> Range<Bytes> {
    at(start)..at(start + len)
}

fn runs(purged: &Purged) -> Vec<(u64, u64)> {
    purged.runs().iter().map(|run| (run.start(), run.len())).collect()
}

fn filled(granules: u64) -> Shared {
    let shared = Shared::options().create(at(granules)).unwrap();
    fill(&shared);
    shared
}

fn fill(shared: &Shared) {
    let pin = shared.pin(Bytes::ZERO..shared.len()).unwrap();
    for granule in 0..shared.len().pages_down(page_size()).get() {
        pin.write(at(granule), &[granule as u8 + 1]).unwrap();
    }
    drop(pin);
    shared.mark(Bytes::ZERO..shared.len(), Priority::NORMAL, Order::Fifo).unwrap();
}

fn byte_of(shared: &Shared, granule: u64) -> u8 {
    let mut byte = [0xEE];
    shared.pin(range(granule, 1)).unwrap().read(Bytes::ZERO, &mut byte).unwrap();
    byte[0]
}

fn purger(shared: &Shared) -> Purger {
    Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap()
}

fn purge_all(shared: &Shared) -> Bytes {
    shared.purge(shared.len(), Priority::HIGHEST).unwrap()
}
