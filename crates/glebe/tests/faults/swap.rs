//! The test body [`live`] makes a store, inserts objects beyond the budget, and reads, writes and
//! removes the objects.

use std::path::Path;
use std::rc::Rc;

use glebe::page_size;
use glebe::swap::{Key, Store, SwapError};
use glebe::units::{Bytes, Pages};

use super::bytes::remembered;
use super::{Errors, Outcome};

const OBJECTS: usize = 30;
const BUDGET: Pages = Pages::new(14);
const POOL_LIMIT: Bytes = Bytes::mib(2);
const POOL_LIMIT_SMALL: Bytes = Bytes::new(96 << 10);
const FILE_LIMIT: Bytes = Bytes::mib(4);

/// Some objects compress, some do not, some repeat one byte.
fn bytes_of(n: usize, version: u8) -> Rc<[u8]> {
    let page = page_size().bytes().as_usize();
    let len = if n % 8 == 0 { 3 * page + 5 } else { page - n };
    let byte = |at: usize| match n % 3 {
        0 => version,
        1 => (at / 16 + n) as u8 ^ version,
        _ => (at.wrapping_mul(0x9e37_79b1).wrapping_add(n) >> 16) as u8 ^ version,
    };
    remembered(n as u64, version, || (0..len).map(byte).collect())
}

struct Life {
    store: Store,
    objects: Vec<(usize, u8, Key)>,
    errors: Errors<SwapError>,
}

impl Life {
    fn keep<T>(&mut self, result: Result<T, SwapError>) -> Option<T> {
        if let Err(refused) = &result {
            use SwapError::{Budget, Full, Os, Pool};
            let is_known = matches!(refused, Os(_) | Pool(_) | Budget { .. } | Full { .. });
            assert!(is_known, "{refused}");
        }
        self.errors.keep(result)
    }

    fn look(&mut self) {
        for at in 0..self.objects.len() {
            let (n, version, key) = self.objects[at];
            let seen = self.store.pin(key).map(|pin| pin.to_vec());
            if let Some(seen) = self.keep(seen) {
                assert!(*seen == *bytes_of(n, version), "object {n}");
            }
        }
        self.store.stats().check().expect("the statistics");
    }

    fn write(&mut self, at: usize) {
        let (n, version, key) = self.objects[at];
        let next = bytes_of(n, version + 1);
        let written = self.store.pin_mut(key).map(|mut guard| guard.copy_from_slice(&next));
        if self.keep(written).is_some() {
            self.objects[at].1 += 1;
        }
    }
}

pub fn live(dir: Option<&Path>) -> Outcome {
    let budget = BUDGET.bytes(page_size());
    let options = match dir {
        Some(dir) => Store::options().pool_limit(POOL_LIMIT_SMALL).file_in(dir, FILE_LIMIT),
        None => Store::options().pool_limit(POOL_LIMIT),
    };
    let store = options.build(budget)?;
    let mut life = Life { store, objects: Vec::new(), errors: Errors::new() };
    for n in 0..OBJECTS {
        let key = life.store.insert(&bytes_of(n, 0));
        if let Some(key) = life.keep(key) {
            life.objects.push((n, 0, key));
        }
    }
    life.look();
    let stats = life.store.stats();
    assert!(dir.is_none() || life.errors.0.is_some() || stats.read_back > 0, "{stats}");
    (0..life.objects.len()).step_by(5).for_each(|at| life.write(at));
    life.look();
    let lowered = life.store.set_budget(Pages::new(BUDGET.get() / 2).bytes(page_size()));
    life.keep(lowered);
    life.look();
    for (n, version, key) in std::mem::take(&mut life.objects) {
        match n % 3 {
            0 => life.store.free(key).expect("a free needs nothing"),
            1 => {
                life.store.dead(key).expect("it is there");
                life.store.free(key).expect("a free needs nothing");
            }
            _ => {
                let taken = life.store.take(key);
                if let Some(bytes) = life.keep(taken) {
                    assert!(*bytes == *bytes_of(n, version), "object {n}");
                }
            }
        }
    }
    // New objects are zeros, even if a failed call left old pages at their addresses.
    for n in 0..OBJECTS / 4 {
        let made = life.store.create(bytes_of(n, 0).len());
        let is_zero = made.map(|object| object.iter().all(|byte| *byte == 0));
        assert!(life.keep(is_zero).unwrap_or(true), "another object's bytes");
    }
    life.store.stats().check().expect("the statistics");
    life.errors.outcome()
}
