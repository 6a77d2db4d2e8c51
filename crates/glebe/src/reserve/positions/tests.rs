//! Tests the chosen places against a plain list of free pages.

use proptest::prelude::*;

use super::*;
use crate::contig::Source;
use glebe_os::internal::mapping::BrickSize;
use glebe_os::units::{PageSize, Pages, Pfn};

const GRANULE_PAGES: u64 = 16;
const COSTS: u64 = 5;

fn contig(pages: u64) -> Contig {
    let len = Pages::new(pages).bytes(glebe_os::internal::sys::page_size());
    Contig::options().source(Source::Plain).build(len).expect("ordinary memory")
}

fn contig_in_phase(pages: u64) -> Contig {
    let out_of_phase = |contig: &Contig| match contig.runs() {
        [run] => run.pfn.is_some_and(|pfn| pfn.get() % (2 * GRANULE_PAGES) != 0),
        _ => false,
    };
    let mut held = vec![contig(pages)];
    while out_of_phase(&held[held.len() - 1]) {
        held.push(contig(pages));
    }
    held.pop().expect("the last one")
}

fn search(len: u64, align: u64) -> Search {
    Search { len, align, any: true, by_cost: false, near: None }
}

struct Plain {
    free: Vec<bool>,
    costs: Vec<u64>,
}

impl Plain {
    /// Searches each stretch of the node by itself, then everywhere.
    fn place_near(&self, search: &Search, pages: &[(Extent, usize)]) -> Option<u64> {
        let own = pages.iter().filter(|of| Some(of.1) == search.near);
        let places = own.filter_map(|(stretch, _)| {
            let mut free = vec![false; self.free.len()];
            let pages = stretch.start() as usize..stretch.end() as usize;
            free[pages.clone()].copy_from_slice(&self.free[pages]);
            let place = Self { free, costs: self.costs.clone() }.place(search)?;
            Some((if search.by_cost { self.price(place, search.len) } else { 0 }, place))
        });
        let best = places.min().filter(|(price, _)| *price < COST_OF_WAITING);
        best.map(|(_, place)| place).or_else(|| self.place(search))
    }

    fn runs(&self) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for page in (0..self.free.len()).filter(|&page| self.free[page]) {
            let page = page as u64;
            match runs.last_mut().filter(|run| run.end() == page) {
                Some(run) => *run = Extent::new(run.start(), run.len() + 1).unwrap(),
                None => runs.push(Extent::new(page, 1).unwrap()),
            }
        }
        runs
    }

    fn price(&self, start: u64, len: u64) -> u64 {
        let granules = start / GRANULE_PAGES..=(start + len - 1) / GRANULE_PAGES;
        granules.map(|granule| self.costs[granule as usize]).sum()
    }

    fn place(&self, search: &Search) -> Option<u64> {
        let Search { len, align, .. } = *search;
        let starts = |run: &Extent| {
            let aligned = (run.start()..run.end()).filter(|start| start % align == 0);
            aligned.filter(|start| start + len <= run.end()).collect::<Vec<_>>()
        };
        let runs = self.runs();
        let fits: Vec<_> = runs.iter().filter(|run| !starts(run).is_empty()).collect();
        let all: Vec<u64> = fits.iter().flat_map(|run| starts(run)).collect();
        let lowest = all.first().copied()?;
        if !search.by_cost || self.price(lowest, len) == 0 {
            return Some(lowest);
        }
        if len < GRANULE_PAGES {
            let last = |start: u64| start + len - 1;
            let is_free = |start: u64| {
                start / GRANULE_PAGES == last(start) / GRANULE_PAGES && self.price(start, len) == 0
            };
            return Some(all.iter().copied().find(|&start| is_free(start)).unwrap_or(lowest));
        }
        let step = align.max(GRANULE_PAGES);
        let firsts = fits.iter().map(|run| starts(run)[0]);
        let steps = all.iter().copied().filter(|start| start % step == 0);
        firsts.chain(steps).min_by_key(|&start| (self.price(start, len), start))
    }
}

#[test]
fn blocks_of_bricks_are_whole_bricks_where_frames_are_aligned_to_them() {
    let [page, each] = [2 << 20, 4 << 20].map(|bytes| PageSize::new(bytes).unwrap());
    let each_pages = each.bytes().pages_down(page_size()).get();
    let half = each_pages / 2;
    let run = |start: u64, len: u64, pfn: u64| {
        let pages = Extent::new(start * half, len * half).unwrap();
        contig::Run { pages, pfn: Some(Pfn::new(pfn * half)) }
    };
    // Even frames from the middle of a brick on; odd frames of whole bricks; a brick of two runs.
    let known = [run(0, 1, 8), run(1, 5, 21), run(6, 4, 31), run(10, 1, 50), run(11, 1, 60)];
    let known = resize::runs_of_bricks(known.to_vec(), Some(BrickSize { each, page }));
    let mut positions = Positions::of_runs(&known, 12 * half, half).unwrap();
    let run = Search { any: false, ..search(each_pages, each_pages) };
    let taken: Vec<u64> =
        std::iter::from_fn(|| positions.take(&run)).map(|found| found.start() / half).collect();
    assert_eq!(taken, [2, 4]);
    assert_eq!(positions.largest(), half, "no further brick");
    let any = Search { any: true, ..run };
    let taken: Vec<u64> =
        std::iter::from_fn(|| positions.take(&any)).map(|found| found.start() / half).collect();
    assert_eq!(taken, [0, 6, 8, 10]);
}

#[test]
fn aligned_blocks_of_any_pages_begin_at_the_first_aligned_page() {
    let run = |start, len, pfn: Option<u64>| contig::Run {
        pages: Extent::new(start, len).unwrap(),
        pfn: pfn.map(Pfn::new),
    };
    let one = [run(0, 64, Some(0x1003))];
    let one_behind = [run(16, 48, Some(0x1009))];
    let hidden = [run(0, 64, None)];
    let two = [run(0, 32, Some(0x1003)), run(32, 32, Some(0x2005))];
    for (runs, of_16, lacks) in
        [(&one[..], 13, 0), (&one_behind, 7, 16), (&hidden, 0, 0), (&two, 0, 0), (&[], 0, 0)]
    {
        let mut positions = Positions::none_free(runs, Proof::Frames, 64, 16).unwrap();
        positions.free(Extent::between(lacks, 64).unwrap());
        assert_eq!(positions.first_aligned(16), of_16, "{runs:?}");
        let first = positions.take(&search(4, 16)).unwrap().start();
        assert_eq!(first % 16, of_16, "{runs:?}");
        assert_eq!(positions.first_aligned(1 << 30) % 16, of_16, "also beyond 1 GiB: {runs:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_search_leads_where_a_plain_one_does(
        steps in prop::collection::vec(any::<(u8, u8, u8, u64)>(), 1..60),
    ) {
        const PAGES: u64 = 16 * GRANULE_PAGES;
        let contig = contig_in_phase(PAGES);
        let mut positions = Positions::new(&contig, PAGES, GRANULE_PAGES).unwrap();
        let mut plain = Plain { free: vec![true; PAGES as usize], costs: vec![0; 16] };
        let mut held: Vec<Extent> = Vec::new();
        for (what, size, align, salt) in steps {
            if what % 3 == 0 && !held.is_empty() {
                let block = held.swap_remove(usize::from(size) % held.len());
                positions.free(block);
                (block.start()..block.end()).for_each(|page| plain.free[page as usize] = true);
                continue;
            }
            for (nth, cost) in plain.costs.iter_mut().enumerate() {
                *cost = (salt >> (nth * 4)) % COSTS;
            }
            let len = 1 + u64::from(size) / if size % 2 == 0 { 16 } else { 4 };
            let by_cost = what / 3 % 2 == 0;
            let search = Search { by_cost, ..search(len, 1 << (align % 6)) };
            let expected = plain.place(&search).and_then(|start| Extent::new(start, len));
            positions.costs().copy_from_slice(&plain.costs);
            let found = positions.take(&search);
            prop_assert_eq!(found, expected, "{:?} of {:?}", search, plain.runs());
            if let Some(block) = found {
                (block.start()..block.end()).for_each(|page| plain.free[page as usize] = false);
                held.push(block);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_free_stays_so_and_what_goes_was_free_in_whole_units(
        steps in prop::collection::vec(any::<(u8, u8, u64)>(), 1..60),
    ) {
        const PAGES: u64 = 16 * GRANULE_PAGES;
        let run = |start: u64, len: u64, pfn: u64| contig::Run {
            pages: Extent::new(start, len).unwrap(),
            pfn: Some(Pfn::new(pfn)),
        };
        let none_free = |known: &[contig::Run]| {
            Positions::none_free(known, Proof::Frames, PAGES, GRANULE_PAGES).unwrap()
        };
        let first = run(0, 4 * GRANULE_PAGES, 7);
        let mut positions = none_free(&[first]);
        positions.free(first.pages);
        let mut present = vec![first.pages];
        let mut free = vec![false; PAGES as usize];
        let set = |free: &mut Vec<bool>, extent: Extent, to: bool| {
            (extent.start()..extent.end()).for_each(|page| free[page as usize] = to);
        };
        set(&mut free, first.pages, true);
        let mut held: Vec<Extent> = Vec::new();
        for (what, size, salt) in steps {
            match what % 4 {
                0 if !held.is_empty() => {
                    let block = held.swap_remove(usize::from(size) % held.len());
                    positions.free(block);
                    set(&mut free, block, true);
                }
                1 => {
                    let is_absent = |granule: &u64| {
                        let all = Extent::new(granule * GRANULE_PAGES, GRANULE_PAGES).unwrap();
                        !present.iter().any(|other| other.overlaps(all))
                    };
                    let Some(granule) = (0..16).find(is_absent) else { continue };
                    let start = granule * GRANULE_PAGES;
                    let cut = 1 + salt % (GRANULE_PAGES - 1);
                    present.extend([
                        Extent::new(start, cut).unwrap(),
                        Extent::new(start + cut, GRANULE_PAGES - cut).unwrap(),
                    ]);
                    present.sort_by_key(|extent| extent.start());
                    let known: Vec<_> = present
                        .iter()
                        .map(|extent| run(extent.start(), extent.len(), extent.start() * 3))
                        .collect();
                    positions.replace(none_free(&known));
                    let all = Extent::new(start, GRANULE_PAGES).unwrap();
                    positions.free(all);
                    set(&mut free, all, true);
                }
                2 => {
                    let len = (1 + u64::from(size) % 4) * GRANULE_PAGES;
                    let granules = free.chunks(GRANULE_PAGES as usize);
                    let whole = granules.filter(|pages| pages.iter().all(|free| *free)).count();
                    let whole = whole as u64 * GRANULE_PAGES;
                    prop_assert_eq!(positions.units(GRANULE_PAGES), whole);
                    match positions.take_units(len, GRANULE_PAGES) {
                        Err(few) => prop_assert!(few == whole && whole < len),
                        Ok(gone) => {
                            prop_assert_eq!(gone.iter().map(|gone| gone.len()).sum::<u64>(), len);
                            for gone in gone {
                                prop_assert_eq!(gone.start() % GRANULE_PAGES, 0);
                                let mut pages = gone.start()..gone.end();
                                prop_assert!(pages.all(|page| free[page as usize]));
                                set(&mut free, gone, false);
                                let inside = |left: &Extent| !gone.overlaps(*left);
                                let cut: Vec<Extent> = present
                                    .iter()
                                    .filter(|left| gone.overlaps(**left))
                                    .flat_map(|left| {
                                        let before = gone.start().checked_sub(left.start());
                                        let behind = left.end().checked_sub(gone.end());
                                        [
                                            before.and_then(|len| Extent::new(left.start(), len)),
                                            behind.and_then(|len| Extent::new(gone.end(), len)),
                                        ]
                                    })
                                    .flatten()
                                    .collect();
                                present.retain(inside);
                                present.extend(cut);
                                present.sort_by_key(|extent| extent.start());
                            }
                        }
                    }
                }
                _ => {
                    let len = 1 + u64::from(size) % 20;
                    let found = positions.take(&search(len, 1));
                    let lowest = (0..=PAGES - len).find(|start| {
                        (*start..start + len).all(|page| free[page as usize])
                    });
                    prop_assert_eq!(found.map(Extent::start), lowest);
                    if let Some(block) = found {
                        set(&mut free, block, false);
                        held.push(block);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_search_near_a_node_leads_where_plain_ones_in_its_stretches_do(
        borders in prop::collection::btree_set(1..16 * GRANULE_PAGES, 1..6),
        steps in prop::collection::vec(any::<(u8, u8, u8, u64)>(), 1..60),
    ) {
        const PAGES: u64 = 16 * GRANULE_PAGES;
        let ends = borders.iter().copied().chain([PAGES]);
        let starts = [0].into_iter().chain(borders.iter().copied());
        let pages: Vec<(Extent, usize)> = starts
            .zip(ends)
            .zip([0, 1, 2].into_iter().cycle())
            .map(|((start, end), slot)| (Extent::new(start, end - start).unwrap(), slot))
            .collect();
        let contig = contig_in_phase(PAGES);
        let positions = Positions::new(&contig, PAGES, GRANULE_PAGES).unwrap();
        let mut positions = positions.on_nodes(&pages, 3);
        let mut plain = Plain { free: vec![true; PAGES as usize], costs: vec![0; 16] };
        let mut held: Vec<Extent> = Vec::new();
        for (what, size, align, salt) in steps {
            if what % 3 == 0 && !held.is_empty() {
                let block = held.swap_remove(usize::from(size) % held.len());
                positions.free(block);
                (block.start()..block.end()).for_each(|page| plain.free[page as usize] = true);
                continue;
            }
            for (nth, cost) in plain.costs.iter_mut().enumerate() {
                *cost = match (salt >> (nth * 4)) % (COSTS + 1) {
                    COSTS => COST_OF_WAITING,
                    cost => cost,
                };
            }
            let len = 1 + u64::from(size) / if size % 2 == 0 { 16 } else { 4 };
            let (by_cost, slot) = (what / 3 % 2 == 0, usize::from(what) % 3);
            let near = Some(slot);
            let search = Search { by_cost, near, ..search(len, 1 << (align % 6)) };
            let expected = plain.place_near(&search, &pages);
            positions.costs().copy_from_slice(&plain.costs);
            let found = positions.take(&search);
            prop_assert_eq!(found.map(Extent::start), expected, "{:?} {:?}", search, pages);
            let chunk = positions.take_in_chunk(8, near);
            let is_lowest = |page: &u64| {
                let is_taken = found.is_some_and(|it| it.contains(Extent::new(*page, 1).unwrap()));
                plain.free[*page as usize] && !is_taken
            };
            let own = pages.iter().filter(|of| of.1 == slot);
            let lowest = own.flat_map(|of| of.0.start()..of.0.end()).find(is_lowest);
            prop_assert_eq!(chunk.map(Extent::start), lowest);
            for block in found.into_iter().chain(chunk) {
                prop_assert!(pages.iter().any(|of| of.0.contains(block)) || Some(block) == found);
                (block.start()..block.end()).for_each(|page| plain.free[page as usize] = false);
                held.push(block);
            }
        }
    }
}

/// Three runs of 100 pages whose frames are apart. The node changes within the second run, and the
/// positions from 300 on have no memory.
fn runs_on_two_nodes() -> Positions {
    let run = |start: u64, pfn: u64| contig::Run {
        pages: Extent::new(start, 100).unwrap(),
        pfn: Some(Pfn::new(pfn)),
    };
    let known = [run(0, 5000), run(100, 1000), run(200, 9000)];
    let all = Positions::none_free(&known, Proof::Frames, 400, GRANULE_PAGES).unwrap();
    let on = |start, end, slot| (Extent::new(start, end - start).unwrap(), slot);
    let mut all = all.on_nodes(&[on(0, 90, 0), on(90, 160, 1), on(160, 220, 0)], 2);
    all.free(Extent::new(0, 300).unwrap());
    all
}

#[test]
fn a_run_is_on_the_callers_node_if_one_fits_there() {
    let mut positions = runs_on_two_nodes();
    let mut take = |len, near| {
        let search = Search { any: false, near, ..search(len, 1) };
        let found = positions.take(&search).map(Extent::start);
        found.inspect(|start| positions.free(Extent::new(*start, len).unwrap()))
    };
    assert_eq!([take(60, Some(0)), take(60, Some(1))], [Some(0), Some(100)]);
    assert_eq!(take(11, Some(1)), Some(100), "10 are before the border of the runs");
    assert_eq!(take(10, Some(1)), Some(90));
    assert_eq!(take(70, Some(1)), Some(0), "no run on the node is as long");
    // The pages behind the last known node are its own.
    assert_eq!(take(95, Some(0)), Some(200));
    assert_eq!([take(95, Some(1)), take(100, Some(0))], [Some(0), Some(200)]);
    assert_eq!([take(101, Some(0)), take(101, Some(1)), take(60, None)], [None, None, Some(0)]);
    let whole = positions.take(&Search { near: Some(1), ..search(300, 1) });
    assert_eq!(whole, Extent::new(0, 300), "nodes divide no block that fits otherwise");
}

#[test]
fn nodes_that_are_not_told_make_no_difference() {
    let run = contig::Run { pages: Extent::new(0, 64).unwrap(), pfn: Some(Pfn::new(7)) };
    let positions = Positions::of_runs(&[run], 64, GRANULE_PAGES).unwrap();
    let mut positions = positions.on_nodes(&[], 2);
    let search = Search { near: Some(1), ..search(4, 1) };
    assert_eq!(positions.take(&search), Extent::new(0, 4));
    assert_eq!(positions.take_in_chunk(32, Some(1)), None);
    assert_eq!(positions.take_in_chunk(32, None), Extent::new(4, 28));
}

#[test]
fn pages_that_follow_end_with_the_chunk_or_the_free_run() {
    let contig = contig(64);
    let mut positions = Positions::new(&contig, 64, GRANULE_PAGES).unwrap();
    assert_eq!(positions.take_in_chunk(8, None), Extent::new(0, 8));
    let held = positions.take(&search(4, 1)).unwrap();
    positions.free(Extent::new(2, 3).unwrap());
    assert_eq!(positions.take_in_chunk(8, None), Extent::new(2, 3));
    positions.free(held);
    assert_eq!(positions.take_in_chunk(8, None), Extent::new(8, 8));
}

#[test]
fn what_has_no_run_yet_is_passed_over_though_it_costs_nothing() {
    let run = |granule: u64| contig::Run {
        pages: Extent::new(granule * GRANULE_PAGES, GRANULE_PAGES).unwrap(),
        pfn: Some(Pfn::new(granule * GRANULE_PAGES)),
    };
    let known = [run(0), run(3)];
    let none = Positions::none_free(&known, Proof::Frames, 5 * GRANULE_PAGES, GRANULE_PAGES);
    let mut positions = none.unwrap();
    known.iter().for_each(|run| positions.free(run.pages));
    for (any, cost, start) in [(true, 0, 48), (false, 0, 50), (true, 9, 0), (false, 9, 2)] {
        positions.costs().copy_from_slice(&[1, 0, 0, cost, 0]);
        let taken = positions.take(&Search { any, by_cost: true, ..search(2, 1) });
        assert_eq!(taken, Extent::new(start, 2), "{any} {cost}");
    }
}

/// First frame and length of three runs: across 1 GiB, up to 16 GiB, and from 8 GiB on.
const RUNS: [(u64, u64); 3] = [(0x3_fff0, 0x4_0020), (0x3f_ff00, 0x100), (0x20_0000, 0x4_0001)];

fn runs_of_frames(are_known: bool) -> (Vec<contig::Run>, u64) {
    let mut pages = 0;
    let runs = RUNS.map(|(frame, len)| {
        let run = contig::Run {
            pages: Extent::new(pages, len).unwrap(),
            pfn: are_known.then_some(Pfn::new(frame)),
        };
        pages += len;
        run
    });
    (runs.into(), pages)
}

#[test]
fn alignments_beyond_a_gibibyte_are_those_of_the_frames() {
    for are_known in [true, false] {
        let (runs, pages) = runs_of_frames(are_known);
        let mut positions = Positions::of_runs(&runs, pages, GRANULE_PAGES).unwrap();
        let number_of = |page: u64| {
            let run = runs.iter().find(|run| run.pages.contains(Extent::new(page, 1).unwrap()));
            let run = run.expect("a page of a run");
            run.pfn.map_or(page, |pfn| pfn.get() + (page - run.pages.start()))
        };
        positions.costs().fill(1);
        let lens = [1, GRANULE_PAGES, 0x101, 0x3_0000];
        for (log, len) in (16..64).flat_map(|log| lens.map(|len| (log, len))) {
            let align = 1_u64 << log;
            let is_aligned = |run: &contig::Run| {
                let first = number_of(run.pages.start());
                let place = first.checked_next_multiple_of(align);
                place.is_some_and(|place| place + len <= first + run.pages.len())
            };
            let expected = runs.iter().any(is_aligned);
            for by_cost in [false, true] {
                let search = Search { any: false, by_cost, ..search(len, align) };
                let found = positions.take(&search);
                assert_eq!(found.is_some(), expected, "{search:?}, {are_known}");
                let Some(found) = found else { continue };
                assert_eq!(number_of(found.start()) % align, 0, "{search:?}: {found}");
                assert!(positions.is_contiguous(found));
                positions.free(found);
            }
        }
    }
}

#[test]
fn of_places_aligned_beyond_a_gibibyte_the_cheapest_is_taken() {
    // The run has three places aligned to 1 GiB; the first and the last are aligned to 2 GiB.
    let len = 0xc_0000;
    let run = contig::Run { pages: Extent::new(0, len).unwrap(), pfn: Some(Pfn::new(0x10_0000)) };
    let mut positions = Positions::of_runs(&[run], len, GRANULE_PAGES).unwrap();
    let second = (0x8_0000 / GRANULE_PAGES) as usize;
    positions.costs()[..second].fill(1);
    let mut take = |by_cost| {
        let search = Search { any: false, by_cost, ..search(1, 1 << 19) };
        let found = positions.take(&search)?;
        positions.free(found);
        Some(found.start())
    };
    assert_eq!(take(false), Some(0));
    assert_eq!(take(true), Some(0x8_0000));
}
