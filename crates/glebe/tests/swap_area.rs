//! Compares an area of a swap cache with a map, while blocks of the reserve come and go.

mod cost;

use std::collections::HashMap;

use glebe::page_size;
use glebe::reserve::{Block, Reserve};
use glebe::swap::cache::{Area, SwapCache};
use glebe::swap::SwapError;
use glebe::units::{Bytes, Pages};
use glebe_testing::time::is_long;
use proptest::prelude::*;

use glebe_testing::stressed::mix;

const PAGES: u64 = 300;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn page_of(n: u64, matter: u64) -> Vec<u8> {
    let word = |at: u64| match matter % 4 {
        0 => n,
        1 => mix(n << 32 | at),
        _ if at % 2 == 0 => mix(n << 32 | at),
        _ => n,
    };
    (0..page() as u64 / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Store {
        offset: u64,
        matter: u64,
    },
    /// Stores `count` pages at offsets modulo `round`, so that offsets may repeat.
    StoreAll {
        offset: u64,
        count: u64,
        round: u64,
    },
    Load(u64),
    Take(u64),
    InvalidatePage(u64),
    InvalidateArea,
    WriteBack(u64),
    PutBack(u64),
    Clean(u64),
    Recall(u64),
    Free,
}

fn step() -> impl Strategy<Value = Step> {
    let offset = || 0..PAGES;
    prop_oneof![
        8 => (offset(), 0..4_u64).prop_map(|(offset, matter)| Step::Store { offset, matter }),
        4 => (offset(), 1..80_u64, 1..160_u64)
            .prop_map(|(offset, count, round)| Step::StoreAll { offset, count, round }),
        8 => offset().prop_map(Step::Load),
        2 => offset().prop_map(Step::Take),
        2 => offset().prop_map(Step::InvalidatePage),
        1 => Just(Step::InvalidateArea),
        1 => (0..300_u64).prop_map(Step::WriteBack),
        1 => (0..300_u64).prop_map(Step::PutBack),
        1 => (0..300_u64).prop_map(Step::Clean),
        2 => (1..512_u64).prop_map(Step::Recall),
        2 => Just(Step::Free),
    ]
}

/// Returns the length of `count` quarters of a page.
fn quarters(count: u64) -> Bytes {
    Bytes::new(count * page() as u64 / 4)
}

struct Beside {
    area: Area,
    reserve: Reserve,
    blocks: Vec<Block>,
    known: HashMap<u64, Vec<u8>>,
    stores: u64,
    has_file: bool,
}

impl Beside {
    fn new(has_file: bool) -> Self {
        let reserve = Reserve::new(quarters(2048)).unwrap();
        let cache = SwapCache::on(&reserve).unwrap();
        let area = match has_file {
            true => cache.area(Pages::new(PAGES), &std::env::temp_dir(), quarters(8192)),
            false => cache.area_without_file(Pages::new(PAGES)),
        };
        let (area, known) = (area.unwrap(), HashMap::new());
        Self { area, reserve, blocks: Vec::new(), known, stores: 0, has_file }
    }

    fn store(&mut self, offset: u64, matter: u64) {
        self.stores += 1;
        let page = page_of(self.stores, matter);
        match self.area.store(offset, &page) {
            Ok(()) => drop(self.known.insert(offset, page)),
            Err(SwapError::Full { .. }) if !self.has_file => drop(self.known.remove(&offset)),
            Err(error) => panic!("{error}"),
        }
    }

    fn store_all(&mut self, offset: u64, count: u64, round: u64) {
        if !self.has_file {
            return;
        }
        let page = |nth| ((offset + nth % round) % PAGES, page_of(self.stores << 10 | nth, nth));
        let pages: Vec<_> = (0..count).map(page).collect();
        self.area.store_all(pages.iter().map(|(at, page)| (*at, &page[..]))).unwrap();
        self.known.extend(pages);
        self.stores += 1;
    }

    fn expect(&self, offset: u64, found: Result<bool, SwapError>, out: &[u8]) {
        let known = self.known.get(&offset);
        assert_eq!(found.unwrap(), known.is_some(), "offset {offset}");
        assert!(known.is_none_or(|page| page == out), "offset {offset}");
    }

    fn set(&self, result: Result<(), SwapError>) {
        let is_refused = matches!(result, Err(SwapError::PutBackBelowStored { .. }));
        assert!(result.is_ok() || is_refused && !self.has_file, "{result:?}");
    }

    fn make(&mut self, step: &Step) {
        let mut out = vec![0; page()];
        match *step {
            Step::Store { offset, matter } => self.store(offset, matter),
            Step::StoreAll { offset, count, round } => self.store_all(offset, count, round),
            Step::Load(offset) => self.expect(offset, self.area.load(offset, &mut out), &out),
            Step::Take(offset) => {
                self.expect(offset, self.area.take(offset, &mut out), &out);
                self.known.remove(&offset);
            }
            Step::InvalidatePage(offset) => {
                let was = self.area.invalidate_page(offset).unwrap();
                assert_eq!(was, self.known.remove(&offset).is_some());
            }
            Step::InvalidateArea => {
                let dropped = self.area.invalidate_area().unwrap();
                assert_eq!(dropped, Pages::new(self.known.len() as u64));
                self.known.clear();
            }
            Step::WriteBack(count) => self.set(self.area.set_write_back(quarters(count))),
            Step::PutBack(count) => self.set(self.area.set_put_back(quarters(count))),
            Step::Clean(count) => drop(self.area.clean(quarters(count)).unwrap()),
            Step::Recall(pages) => {
                if let Ok(mut block) = self.reserve.try_alloc(Pages::new(pages)) {
                    block.bytes_mut().unwrap().fill(0xee);
                    self.blocks.push(block);
                }
            }
            Step::Free => drop(self.blocks.pop()),
        }
        self.area.stats().check().unwrap();
        let written = |block: &Block| block.bytes().unwrap().iter().all(|byte| *byte == 0xee);
        assert!(self.blocks.iter().all(written), "a stray write");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 48 } else { 12 }))]
    #[test]
    fn random_programs_find_what_a_map_has(
        has_file: bool,
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut beside = Beside::new(has_file);
        steps.iter().for_each(|step| beside.make(step));
        (0..PAGES).for_each(|offset| beside.make(&Step::Load(offset)));
    }
}

#[test]
fn statistics_have_three_forms() {
    let mut beside = Beside::new(true);
    (0..50).for_each(|offset| beside.store(offset, offset));
    let stats = beside.area.stats();
    assert!(stats.to_string().contains("through"), "{stats}");
    assert!(stats.to_json().contains("\"stored\": 50"), "{}", stats.to_json());
    assert!(stats.to_openmetrics().contains("glebe_swap_area_stored_total 50"));
}

#[test]
fn cost() {
    if std::env::var_os("GLEBE_COST").is_none() {
        println!("skipped: a measurement, run by hand with GLEBE_COST=1, in release and alone");
        return;
    }
    cost::measure();
}
