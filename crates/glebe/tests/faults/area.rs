//! [`live`] makes an area of a swap cache, stores and loads pages under changing policies, takes
//! some pages, and invalidates all.
//!
//! Whichever kernel call fails, a stored page has its own bytes until it is removed, a refused page
//! is absent, and the statistics match the contents.

use std::path::Path;
use std::rc::Rc;

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::swap::cache::{Area, SwapCache};
use glebe::swap::SwapError;
use glebe::units::{Bytes, Pages};

use super::bytes::remembered;
use super::{Errors, Outcome};

const PAGES: u64 = 40;
const RESERVE: Bytes = Bytes::mib(2);
const FILE_LIMIT: Bytes = Bytes::mib(1);
/// Less than the stored pages take.
const WRITE_BACK: Bytes = Bytes::new(16 << 10);
const PUT_BACK: Bytes = Bytes::new(96 << 10);

/// Some pages compress, some do not, some repeat one byte.
fn page_of(n: u64, version: u8) -> Rc<[u8]> {
    let byte = |at: usize| match n % 3 {
        0 => version,
        1 => (at / 16 + n as usize) as u8 ^ version,
        _ => (at.wrapping_mul(0x9e37_79b1).wrapping_add(n as usize) >> 16) as u8 ^ version,
    };
    remembered(n, version, || (0..page_size().bytes().as_usize()).map(byte).collect())
}

struct Life {
    area: Area,
    known: Vec<Option<u8>>,
    errors: Errors<SwapError>,
}

impl Life {
    fn keep<T>(&mut self, result: Result<T, SwapError>) -> Option<T> {
        if let Err(refused) = &result {
            use SwapError::{Full, Os, Pool};
            let is_known = matches!(refused, Os(_) | Pool(_) | Full { .. });
            assert!(is_known, "{refused}");
        }
        self.errors.keep(result)
    }

    fn store(&mut self, n: u64, version: u8) {
        let stored = self.area.store(n, &page_of(n, version));
        self.known[n as usize] = self.keep(stored).map(|()| version);
    }

    fn look(&mut self) {
        let mut out = page_of(0, 0).to_vec();
        for n in 0..PAGES {
            let found = self.area.load(n, &mut out);
            let Some(found) = self.keep(found) else { continue };
            assert_eq!(found, self.known[n as usize].is_some(), "page {n}");
            let is_whole =
                self.known[n as usize].is_none_or(|version| *out == *page_of(n, version));
            assert!(is_whole, "page {n}");
        }
        self.area.stats().check().expect("the statistics");
    }
}

pub fn live(dir: Option<&Path>) -> Outcome {
    let has_file = dir.is_some();
    // Plain memory, because other processes use the machine's hugetlb pool.
    let plain = Contig::options().source(Source::Plain);
    let reserve = Reserve::options().memory(plain).build(RESERVE)?;
    let cache = SwapCache::on(&reserve)?;
    let area = match dir {
        Some(dir) => cache.area(Pages::new(PAGES), dir, FILE_LIMIT)?,
        None => cache.area_without_file(Pages::new(PAGES))?,
    };
    let mut life = Life { area, known: vec![None; PAGES as usize], errors: Errors::new() };
    let set = life.area.set_put_back(if has_file { Bytes::ZERO } else { PUT_BACK });
    life.keep(set);
    (0..PAGES).for_each(|n| life.store(n, 0));
    life.look();
    let set = life.area.set_write_back(WRITE_BACK);
    life.keep(set);
    (0..PAGES).step_by(2).for_each(|n| life.store(n, 1));
    if let Ok(mut block) = reserve.alloc(reserve.largest_run()?) {
        block.bytes_mut()?.fill(0xee);
    }
    life.look();
    if has_file {
        let set = life.area.set_write_back(Bytes::ZERO);
        life.keep(set);
        life.look();
    }
    let mut out = page_of(0, 0).to_vec();
    for n in (0..PAGES).step_by(3) {
        let taken = life.area.take(n, &mut out);
        if life.keep(taken).is_some() {
            life.known[n as usize] = None;
        }
    }
    life.look();
    life.area.invalidate_area().expect("it needs nothing");
    life.known.fill(None);
    life.look();
    life.errors.outcome()
}
