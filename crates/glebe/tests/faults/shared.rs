//! [`live`] makes or opens a shared file, and pins, writes, marks, purges and unmarks granules.
//!
//! If any kernel call fails, granules that were not lost keep their bytes, the first successful
//! unmark reports the lost granules, and pinned granules are not purged. With a path, [`live`]
//! makes the file there and opens it again, with `sigbus`.

use std::error::Error;
use std::path::Path;

use glebe::internal::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Order, Priority, Purger, Shared};
use glebe_testing::alone;

use super::Outcome;

const GRANULES: u64 = 12;
/// Attempts at a call. A fault that does not last is over at the last attempt.
const ATTEMPTS: usize = 3;

fn at(granule: u64) -> Bytes {
    Pages::new(granule).bytes(page_size())
}

pub fn create(path: &Path) -> Result<(), glebe::volatile::Error> {
    let made = Shared::options().create_at(path, at(1));
    let _ = std::fs::remove_file(path);
    made.map(drop)
}

pub fn live(path: Option<&Path>) -> Outcome {
    let made = match path {
        None => Shared::options().create(at(GRANULES)),
        Some(path) => {
            let made = Shared::options().sigbus(true).create_at(path, at(GRANULES));
            let opened = made.and_then(|_made| Shared::options().sigbus(true).open(path));
            let _ = std::fs::remove_file(path);
            opened
        }
    };
    let shared = made?;
    let purger = Purger::adopt(shared.fd().try_clone_to_owned()?);
    let mut first = None;
    let used = use_all(&shared, purger.as_ref().ok(), &mut first);
    drop(purger.map_err(|error| first.get_or_insert(error.into())));
    used?;
    first.map_or(Ok(()), Err)
}

type Errors = Option<Box<dyn Error>>;

fn tried<T>(first: &mut Errors, call: impl Fn() -> Result<T, glebe::volatile::Error>) -> Option<T> {
    (0..ATTEMPTS).find_map(|_| call().map_err(|error| first.get_or_insert(error.into())).ok())
}

fn use_all(shared: &Shared, purger: Option<&Purger>, first: &mut Errors) -> Outcome {
    let all = Bytes::ZERO..at(GRANULES);
    let Some(pin) = tried(first, || shared.pin(all.clone())) else { return Ok(()) };
    for granule in 0..GRANULES {
        pin.write(at(granule), &[granule as u8 + 1])?;
    }
    drop(pin);
    for (range, priority) in [(0..4, 1), (4..12, 6)] {
        let range = at(range.start)..at(range.end);
        let priority = Priority::new(priority).expect("a priority");
        tried(first, || shared.mark(range.clone(), priority, Order::Lifo));
    }
    let kept = tried(first, || shared.pin(at(2)..at(4)));
    tried(first, || shared.purge(at(5), Priority::HIGHEST));
    if let Some(purger) = purger {
        tried(first, || purger.look());
        tried(first, || purger.purge(at(1), Priority::HIGHEST));
    }
    tried(first, || shared.drop_now(at(9)..at(11)));
    if let Some(kept) = &kept {
        let mut bytes = [0; 2];
        kept.read(at(0), &mut bytes[..1])?;
        kept.read(at(1), &mut bytes[1..])?;
        assert_eq!((bytes, kept.lost().is_empty()), ([3, 4], true), "pinned and purged");
        tried(first, || kept.restored());
    }
    let present = shared.stats();
    assert!(present.total == Pages::new(GRANULES));
    let Some(lost) = tried(first, || shared.unmark(all.clone())) else { return Ok(()) };
    for granule in 0..GRANULES {
        let Some(pin) = tried(first, || shared.pin(at(granule)..at(granule + 1))) else { continue };
        let is_lost = lost.runs().iter().any(|run| (run.start()..run.end()).contains(&granule));
        let mut byte = [0];
        pin.read(Bytes::ZERO, &mut byte)?;
        assert_eq!(byte[0], if is_lost { 0 } else { granule as u8 + 1 }, "granule {granule}");
    }
    Ok(())
}

#[test]
fn pins_make_no_call() {
    alone!();
    let shared = Shared::options().create(at(GRANULES)).unwrap();
    let range = at(2)..at(6);
    drop(shared.pin(range.clone()).unwrap());
    shared.mark(range.clone(), Priority::NORMAL, Order::Fifo).unwrap();
    arm(Fault { nth: u64::MAX, choice: 0, lasting: Lasting::Once });
    for _ in 0..100 {
        let pin = shared.pin(range.clone()).unwrap();
        pin.write(Bytes::ZERO, b"bytes").unwrap();
    }
    assert_eq!(disarm().calls, 0);
}
