//! Tests tables against the kernel's and against their definition.

use proptest::prelude::*;

use super::*;

/// The kernel's classes: size, slots and pages, for up to 4 pages per zspage.
#[rustfmt::skip]
const CHAIN_4: [(u64, u32, u64); 69] = [
    (32, 128, 1), (48, 256, 3), (64, 64, 1), (80, 51, 1), (96, 128, 3), (112, 73, 2),
    (128, 32, 1), (144, 85, 3), (160, 51, 2), (176, 93, 4), (192, 64, 3), (208, 59, 3),
    (224, 73, 4), (240, 17, 1), (256, 16, 1), (272, 15, 1), (288, 14, 1), (304, 40, 3),
    (320, 51, 4), (336, 12, 1), (352, 23, 2), (368, 11, 1), (384, 32, 3), (400, 10, 1),
    (416, 39, 4), (432, 28, 3), (448, 9, 1), (464, 35, 4), (480, 17, 2), (496, 33, 4),
    (512, 8, 1), (528, 31, 4), (544, 15, 2), (560, 29, 4), (576, 7, 1), (592, 27, 4),
    (608, 20, 3), (624, 13, 2), (640, 19, 3), (672, 6, 1), (704, 23, 4), (720, 17, 3),
    (736, 11, 2), (768, 16, 3), (816, 5, 1), (848, 19, 4), (864, 14, 3), (896, 9, 2),
    (944, 13, 3), (960, 17, 4), (1024, 4, 1), (1088, 15, 4), (1104, 11, 3), (1168, 7, 2),
    (1216, 10, 3), (1248, 13, 4), (1360, 3, 1), (1488, 11, 4), (1536, 8, 3), (1632, 5, 2),
    (1744, 7, 3), (1808, 9, 4), (2048, 2, 1), (2336, 7, 4), (2448, 5, 3), (2720, 3, 2),
    (3072, 4, 3), (3264, 5, 4), (4096, 1, 1),
];

#[rustfmt::skip]
const CHAIN_8: [(u64, u32, u64); 119] = [
    (32, 128, 1), (48, 256, 3), (64, 64, 1), (80, 256, 5), (96, 128, 3), (112, 256, 7),
    (128, 32, 1), (144, 199, 7), (160, 128, 5), (176, 93, 4), (192, 64, 3), (208, 59, 3),
    (224, 128, 7), (240, 17, 1), (256, 16, 1), (272, 15, 1), (288, 71, 5), (304, 94, 7),
    (320, 64, 5), (336, 73, 6), (352, 93, 8), (368, 89, 8), (384, 32, 3), (400, 51, 5),
    (416, 59, 6), (432, 66, 7), (448, 64, 7), (464, 44, 5), (480, 17, 2), (496, 33, 4),
    (512, 8, 1), (528, 31, 4), (544, 15, 2), (560, 51, 7), (576, 7, 1), (592, 55, 8),
    (608, 47, 7), (624, 13, 2), (640, 32, 5), (656, 31, 5), (672, 6, 1), (688, 47, 8),
    (704, 29, 5), (720, 17, 3), (736, 11, 2), (752, 38, 7), (768, 16, 3), (784, 26, 5),
    (816, 5, 1), (832, 39, 8), (848, 24, 5), (864, 33, 7), (880, 37, 8), (896, 32, 7),
    (912, 31, 7), (928, 22, 5), (944, 13, 3), (960, 17, 4), (976, 25, 6), (992, 33, 8),
    (1024, 4, 1), (1056, 31, 8), (1072, 19, 5), (1088, 15, 4), (1104, 11, 3), (1120, 29, 8),
    (1136, 18, 5), (1168, 7, 2), (1184, 24, 7), (1200, 17, 5), (1216, 10, 3), (1232, 23, 7),
    (1248, 13, 4), (1280, 16, 5), (1296, 22, 7), (1360, 3, 1), (1424, 23, 8), (1440, 17, 6),
    (1456, 14, 5), (1488, 11, 4), (1504, 19, 7), (1536, 8, 3), (1552, 21, 8), (1568, 13, 5),
    (1584, 18, 7), (1632, 5, 2), (1680, 17, 7), (1696, 12, 5), (1712, 19, 8), (1744, 7, 3),
    (1792, 16, 7), (1808, 9, 4), (1856, 11, 5), (1888, 13, 6), (1904, 15, 7), (1920, 17, 8),
    (2048, 2, 1), (2176, 15, 8), (2192, 13, 7), (2224, 11, 6), (2272, 9, 5), (2336, 7, 4),
    (2384, 12, 7), (2448, 5, 3), (2512, 13, 8), (2560, 8, 5), (2592, 11, 7), (2720, 3, 2),
    (2864, 10, 7), (2912, 7, 5), (2976, 11, 8), (3072, 4, 3), (3184, 9, 7), (3264, 5, 4),
    (3408, 6, 5), (3504, 7, 6), (3584, 8, 7), (3632, 9, 8), (4096, 1, 1),
];

fn page(kib: u64) -> PageSize {
    PageSize::new(kib << 10).unwrap()
}

fn rules(kib: u64, chain: u64) -> Rules {
    Rules { chain: Pages::new(chain), ..Rules::of_page(page(kib)) }
}

fn table(kib: u64, chain: u64) -> Table {
    Table::by_rules(&rules(kib, chain)).unwrap()
}

fn rows(table: &Table) -> Vec<(u64, u32, u64)> {
    table.classes().iter().map(|c| (c.size.get(), c.objects, c.pages.get())).collect()
}

#[test]
fn the_tables_of_the_kernel() {
    assert_eq!(rows(&table(4, 4)), CHAIN_4);
    assert_eq!(rows(&table(4, 8)), CHAIN_8);
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
