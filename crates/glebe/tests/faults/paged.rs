//! [`live`] makes a region of swap, writes and reads more pages than its budget, keeps some in
//! memory, discards some, and lowers the budget.
//!
//! Whichever kernel call fails: a written page has its bytes, a page whose write was refused is
//! unchanged, and the statistics match the contents.

use std::path::Path;
use std::rc::Rc;

use glebe::internal::without_moves;
use glebe::page_size;
use glebe::swap::{Region, Store, SwapError};
use glebe::units::{Bytes, Pages};

use super::bytes::remembered;
use super::{Errors, Outcome};

const PAGES: u64 = 40;
const BUDGET: u64 = 12;
const POOL_LIMIT: Bytes = Bytes::mib(2);
const POOL_LIMIT_SMALL: Bytes = Bytes::new(96 << 10);
const FILE_LIMIT: Bytes = Bytes::mib(4);

fn at(page: u64) -> Bytes {
    Pages::new(page).bytes(page_size())
}

fn bytes_of(page: u64, version: u8) -> Rc<[u8]> {
    let noise = |at: u64| (at.wrapping_mul(0x9e37_79b1) >> 16) as u8;
    let byte = |at: u64| if page % 3 == 0 { version } else { noise(at / page) ^ version };
    remembered(page, version, || (0..page_size().bytes().get()).map(byte).collect())
}

struct Life {
    region: Region,
    versions: [u8; PAGES as usize],
    errors: Errors<SwapError>,
}

impl Life {
    fn keep<T>(&mut self, result: Result<T, SwapError>) -> Option<T> {
        if let Err(refused) = &result {
            use SwapError::{Budget, BudgetBelowPinned, Os, Pool};
            let is_known =
                matches!(refused, Os(_) | Pool(_) | Budget { .. } | BudgetBelowPinned { .. });
            assert!(is_known, "{refused}");
        }
        self.errors.keep(result)
    }

    fn look(&mut self) {
        for page in 0..PAGES {
            let mut seen = vec![0; page_size().bytes().as_usize()];
            let read = self.region.read_at(at(page), &mut seen);
            if self.keep(read).is_some() {
                let version = self.versions[page as usize];
                let is_new = version == 0 && seen.iter().all(|byte| *byte == 0);
                assert!(is_new || *seen == *bytes_of(page, version), "page {page}");
            }
        }
        self.region.stats().check().expect("the statistics");
    }

    fn write(&mut self, step: usize) {
        for page in (0..PAGES).step_by(step) {
            let version = self.versions[page as usize] + 1;
            let written = self.region.write_at(at(page), &bytes_of(page, version));
            if self.keep(written).is_some() {
                self.versions[page as usize] = version;
            }
        }
    }
}

pub fn live(moves: bool, dir: Option<&Path>) -> Outcome {
    let options = match dir {
        Some(dir) => Store::options().pool_limit(POOL_LIMIT_SMALL).file_in(dir, FILE_LIMIT),
        None => Store::options().pool_limit(POOL_LIMIT),
    };
    let options = if moves { options } else { without_moves(options) };
    let region = options.build_region(at(PAGES), at(BUDGET))?;
    let mut life = Life { region, versions: [0; PAGES as usize], errors: Errors::new() };
    life.write(1);
    life.look();
    let stats = life.region.stats();
    assert!(dir.is_none() || life.errors.0.is_some() || stats.read_back > 0, "{stats}");
    life.write(5);
    life.look();
    let kept = life.region.resident(at(3), at(4)).map(|guard| guard.to_vec());
    if let Some(kept) = life.keep(kept) {
        let expected = [3, 4, 5, 6].map(|page| bytes_of(page, life.versions[page as usize]));
        assert!(life.versions[3..7].contains(&0) || kept == expected.concat());
    }
    for page in 10..14 {
        let discarded = life.region.discard(at(page), at(1));
        if life.keep(discarded).is_some() {
            life.versions[page as usize] = 0;
        }
    }
    life.region.cold(at(15), at(10)).expect("it needs nothing");
    let needed = life.region.will_need(at(30), at(5));
    life.keep(needed);
    life.look();
    let lowered = life.region.set_budget(at(BUDGET / 2));
    life.keep(lowered);
    life.look();
    life.errors.outcome()
}
