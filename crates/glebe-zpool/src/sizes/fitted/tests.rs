//! Tests fitted tables against all possible tables and against rules.

use proptest::prelude::*;

use super::*;
use glebe_os::units::PageSize;

fn rules(step: u64, chain: u64) -> Rules {
    let page = PageSize::new(4 << 10).unwrap();
    Rules { step: Bytes::new(step), chain: Pages::new(chain), ..Rules::of_page(page) }
}

fn check(table: &Table) {
    let page = table.rules().page;
    let classes = table.classes();
    assert!(classes.windows(2).all(|two| two[0].size < two[1].size), "{classes:?}");
    assert_eq!(classes.last().map(|class| class.size), Some(page.bytes()));
    for class in classes {
        let slots = class.size.get() * u64::from(class.objects);
        assert!(class.objects > 0 && slots <= class.pages.bytes(page).get(), "{class:?}");
    }
    for len in 1..=page.bytes().as_usize() {
        let class = table.class_of(len).unwrap();
        assert!(classes[class].size.as_usize() >= len);
        assert!(class == 0 || classes[class - 1].size.as_usize() < len);
    }
}

fn naive(sizes: &[(u64, u64)], rules: &Rules) -> f64 {
    let Some(((size, _), below)) = sizes.split_last() else { return 0.0 };
    let size = Bytes::new(*size);
    let mut least = f64::INFINITY;
    for from in 0..=below.len() {
        let objects = sizes[from..].iter().map(|(_, n)| n).sum();
        for pages in 1..=rules.chain.get() {
            let class = SizeClass::of(size, Pages::new(pages), rules.page);
            let here = Cost::of(class, rules).held(objects);
            least = least.min(naive(&sizes[..from], rules) + here);
        }
    }
    least
}

fn histogram(rules: &Rules, objects: &[(usize, u64)]) -> Histogram {
    let mut histogram = Histogram::new(rules);
    objects.iter().for_each(|&(len, n)| histogram.add(len, n));
    histogram
}

fn fitted(histogram: &Histogram) -> Table {
    Table::by_rules(&histogram.rules).unwrap().fitted(histogram, 0.0)
}

fn any_objects(sizes: usize) -> impl Strategy<Value = Vec<(usize, u64)>> {
    prop::collection::vec((1_usize..=4096, 1_u64..2000), 0..=sizes)
}

proptest! {
    #[test]
    fn no_classes_are_expected_to_hold_less(objects in any_objects(6), chain in 1_u64..=5) {
        let rules = rules(64, chain);
        let histogram = histogram(&rules, &objects);
        let table = fitted(&histogram);
        check(&table);
        let sizes: Vec<(u64, u64)> = histogram
            .objects
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(at, n)| (rules.grid_size(at).get(), *n))
            .collect();
        let (held, least) = (table.expected(&histogram), naive(&sizes, &rules));
        prop_assert!((held - least).abs() <= least * 1e-9, "{held} held, {least} is least");
    }

    #[test]
    fn fitted_is_at_most_what_the_rules_hold(objects in any_objects(300), chain in 1_u64..=16) {
        let rules = rules(16, chain);
        let histogram = histogram(&rules, &objects);
        let best = fitted(&histogram);
        check(&best);
        prop_assert_eq!(&best, &fitted(&histogram));
        let held = |table: &Table| table.expected(&histogram);
        let by_rules = Table::by_rules(&rules).unwrap();
        prop_assert!(held(&best) <= held(&by_rules) * (1.0 + 1e-9));
    }

    #[test]
    fn a_move_that_costs_more_is_made_less(
        before in any_objects(40), after in any_objects(40), chain in 1_u64..=16,
    ) {
        let rules = rules(16, chain);
        let present = fitted(&histogram(&rules, &before));
        let now = histogram(&rules, &after);
        let moved = |table: &Table| -> u64 {
            let class = |of: &Table, at| of.classes()[of.class_of(at).unwrap()];
            let grid = now.objects.iter().enumerate();
            grid.map(|(at, n)| {
                let size = rules.grid_size(at);
                let from = class(&present, size.as_usize());
                let same = from.same_zspages(&class(table, size.as_usize()));
                if same { 0 } else { n * size.get() }
            }).sum()
        };
        let free = present.fitted(&now, 0.0);
        let dear = present.fitted(&now, 1e6);
        check(&dear);
        let held = |table: &Table| table.expected(&now);
        prop_assert!(held(&free) <= held(&dear) * (1.0 + 1e-9));
        prop_assert!(held(&free) <= held(&present) * (1.0 + 1e-9));
        prop_assert!(moved(&dear) <= moved(&free));
        for (at, n) in now.objects.iter().enumerate() {
            let class = dear.classes()[dear.class_of(rules.grid_size(at).as_usize()).unwrap()];
            let known = present.classes().iter().any(|of| of.same_zspages(&class));
            prop_assert!(*n == 0 || known, "{class:?}");
        }
    }
}

#[test]
fn a_pool_of_nothing_has_one_class() {
    let empty = histogram(&rules(16, 8), &[]);
    let table = fitted(&empty);
    check(&table);
    assert_eq!(table.classes().len(), 1);
    assert_eq!(table.expected(&empty), 0.0);
}

#[test]
fn one_size_gets_the_zspage_that_wastes_least_of_so_many() {
    // Three slots of 1360 bytes leave 16 bytes of a page, so longer zspages save hardly anything.
    let shape = |n: u64, len: usize| {
        let table = fitted(&histogram(&rules(16, 8), &[(len, n)]));
        let class = table.classes()[0];
        (class.pages.get(), class.objects)
    };
    assert_eq!(shape(100, 1350), (1, 3));
    // Longer zspages pay only with many objects: three pages waste less, six save only headers.
    assert_eq!(shape(1, 2448), (1, 1));
    assert_eq!(shape(500, 2448), (3, 5));
    assert_eq!(shape(100_000, 2448), (6, 10));
}

#[test]
fn larger_pages_are_fitted_too() {
    for kib in [16_u64, 64] {
        let rules = Rules::of_page(PageSize::new(kib << 10).unwrap());
        let objects: Vec<(usize, u64)> = (1..kib as usize * 32).map(|n| (n * 32, 50)).collect();
        let histogram = histogram(&rules, &objects);
        let table = fitted(&histogram);
        check(&table);
        let stored: usize = objects.iter().map(|(len, n)| len * *n as usize).sum();
        assert!(table.expected(&histogram) < stored as f64 * 1.1);
    }
}
