//! Tests tables against the kernel's and against their definition.

use proptest::prelude::*;

use super::*;

mod kernel;

fn page(kib: u64) -> PageSize {
    PageSize::new(kib << 10).unwrap()
}

fn rules(kib: u64, chain: u64) -> Rules {
    Rules { chain: Pages::new(chain), ..Rules::of_page(page(kib)) }
}

fn table(kib: u64, chain: u64) -> Table {
    Table::by_rules(&rules(kib, chain)).unwrap()
}

fn rows(table: &Table) -> Vec<kernel::Row> {
    table.classes().iter().map(|c| (c.size.get(), c.objects, c.pages.get())).collect()
}

#[test]
fn the_tables_of_the_kernel() {
    assert_eq!(rows(&table(4, 4)), kernel::PAGE_4K_CHAIN_4);
    assert_eq!(rows(&table(4, 8)), kernel::PAGE_4K_CHAIN_8);
    assert_eq!(rows(&table(16, 8)), kernel::PAGE_16K_CHAIN_8);
    assert_eq!(rows(&table(64, 8)), kernel::PAGE_64K_CHAIN_8);
}

#[test]
fn as_many_classes_as_the_kernel_has_for_every_chain() {
    let counts = [30, 42, 57, 69, 86, 94, 110, 119, 136, 141, 153, 159, 173, 179, 186, 192];
    let marks = [
        2048, 2720, 3072, 3264, 3408, 3504, 3584, 3632, 3680, 3712, 3744, 3776, 3792, 3808, 3840,
        3840,
    ];
    for (chain, (count, mark)) in (1..).zip(counts.into_iter().zip(marks)) {
        let table = table(4, chain);
        assert_eq!(table.classes().len(), count, "chain {chain}");
        assert_eq!(table.watermark(), Bytes::new(mark), "chain {chain}");
    }
    let larger = [(16, 4, 70, 13088), (16, 8, 121, 14560), (64, 4, 72, 52256), (64, 8, 123, 58144)];
    for (kib, chain, count, mark) in larger {
        let table = table(kib, chain);
        assert_eq!(table.classes().len(), count, "{kib} KiB, chain {chain}");
        assert_eq!(table.watermark(), Bytes::new(mark), "{kib} KiB, chain {chain}");
    }
    let unmerged = Rules { merge: false, ..rules(4, 8) };
    assert_eq!(Table::by_rules(&unmerged).unwrap().classes().len(), 255);
    for (step, count) in [(32, 77), (64, 51)] {
        let wider = Rules { step: Bytes::new(step), ..rules(4, 8) };
        assert_eq!(Table::by_rules(&wider).unwrap().classes().len(), count, "step {step}");
    }
}

#[test]
fn the_largest_tails_are_those_of_the_report() {
    for (chain, percent) in [(4, 2.44), (8, 1.56)] {
        let table = table(4, chain);
        let share = |c: &SizeClass| {
            c.tail(page(4)).get() as f64 / c.pages.bytes(page(4)).get() as f64 * 100.0
        };
        let most = table.classes().iter().map(share).fold(0.0, f64::max);
        assert!((most - percent).abs() < 0.005, "chain {chain}: {most}");
    }
}

#[test]
fn rules_out_of_their_limits_are_refused_by_name() {
    let good = Rules::of_page(page(4));
    let of = |rules: Rules| Table::by_rules(&rules).unwrap_err().to_string();
    for step in [0, 3, 24, 8192] {
        let text = of(Rules { step: Bytes::new(step), ..good });
        assert!(
            text.contains(&format!("power of two, of {step}:")) && text.contains("1 to 4096"),
            "{text}"
        );
    }
    for min in [0, 4097] {
        let text = of(Rules { min: Bytes::new(min), ..good });
        assert!(
            text.contains(&format!("in bytes of {min}:")) && text.contains("1 to 4096"),
            "{text}"
        );
    }
    for chain in [0, 17] {
        let text = of(Rules { chain: Pages::new(chain), ..good });
        assert!(
            text.contains(&format!("in pages of {chain}:")) && text.contains("1 to 16"),
            "{text}"
        );
    }
    for kib in [2, 128] {
        let text = of(Rules::of_page(page(kib)));
        assert!(
            text.contains(&format!("of {}:", kib << 10)) && text.contains("to 65536"),
            "{text}"
        );
    }
    let text = of(Rules { step: Bytes::new(1), ..Rules::of_page(page(64)) });
    assert!(text.contains("classes of 65505") && text.contains("4096"), "{text}");
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let steps = (0_u32..=3, 0_u32..=8).prop_map(|(page, step)| (12 + page, 4 + page + step));
    (steps, 1_u64..=4096, 1_u64..=16, any::<bool>()).prop_map(
        |((page, step), min, chain, merge)| Rules {
            step: Bytes::new(1 << step.min(page)),
            min: Bytes::new(min),
            chain: Pages::new(chain),
            merge,
            page: PageSize::new(1 << page).unwrap(),
        },
    )
}

fn naive_pages(size: u64, rules: &Rules) -> u64 {
    if size.is_power_of_two() {
        return 1;
    }
    let page = rules.page.bytes().get();
    let mut best = 1;
    for pages in 2..=rules.chain.get() {
        if pages * page % size < best * page % size {
            best = pages;
        }
    }
    best
}

proptest! {
    #[test]
    fn every_length_has_the_smallest_class_that_holds_it(rules in any_rules()) {
        let table = Table::by_rules(&rules).unwrap();
        let page = rules.page.bytes().as_usize();
        let classes = table.classes();
        prop_assert!(classes.windows(2).all(|two| two[0].size < two[1].size));
        for len in 1..=page {
            let found = table.class_of(len).unwrap();
            prop_assert!(classes[found].size.as_usize() >= len);
            prop_assert!(found == 0 || classes[found - 1].size.as_usize() < len);
        }
        for len in [0, page + 1, usize::MAX] {
            prop_assert_eq!(table.class_of(len), None);
        }
    }

    #[test]
    fn zspages_have_the_least_tail(rules in any_rules()) {
        for class in Table::by_rules(&rules).unwrap().classes() {
            let size = class.size.get();
            prop_assert_eq!(class.pages.get(), naive_pages(size, &rules));
            let len = class.pages.bytes(rules.page).get();
            prop_assert_eq!(u64::from(class.objects), len / size);
            prop_assert_eq!(class.tail(rules.page).get(), len % size);
            let stride = class.stride(rules.page).get();
            prop_assert!(stride >= size && stride * u64::from(class.objects) <= len);
        }
    }

    #[test]
    fn merged_are_those_that_are_equal_and_no_others(rules in any_rules()) {
        let one = Table::by_rules(&Rules { merge: true, ..rules }).unwrap();
        let all = Table::by_rules(&Rules { merge: false, ..rules }).unwrap();
        prop_assert!(one.classes().windows(2).all(|two| !two[0].same_zspages(&two[1])));
        for class in all.classes() {
            let merged = one.classes()[one.class_of(class.size.as_usize()).unwrap()];
            prop_assert!(merged.same_zspages(class));
        }
    }
}
