use glebe::units::{PageSize, Pages};

use super::*;

/// In front of an object in the kernel.
const HEADER: Bytes = Bytes::new(8);

fn rules(chain: u64, merge: bool) -> Rules {
    let page = PageSize::new(4 << 10).unwrap();
    Rules { chain: Pages::new(chain), merge, ..Rules::of_page(page) }
}

/// What the report of the pool's design found by its own simulation and, of the kernel's table,
/// by zram: steps and percent, percent compacted at the last step, objects moved by that.
struct Reported {
    name: &'static str,
    rules: Rules,
    header: Bytes,
    steps: &'static [(usize, f64)],
    compacted: f64,
    moved: u64,
}

#[test]
fn the_rows_of_the_report() {
    let trace = Trace::load().unwrap();
    let wider = |step| Rules { step: Bytes::new(step), ..rules(8, true) };
    let reported = |name, rules, steps, compacted, moved| Reported {
        name,
        rules,
        header: HEADER,
        steps,
        compacted,
        moved,
    };
    let all = [
        reported(
            "chain 4, no merge",
            rules(4, false),
            &[(1, 5.67), (3, 10.68), (7, 22.36), (10, 50.40)],
            8.63,
            1829,
        ),
        reported(
            "chain 4",
            rules(4, true),
            &[(1, 5.54), (3, 7.52), (7, 11.81), (10, 23.69)],
            6.40,
            1080,
        ),
        reported(
            "chain 8, no merge",
            rules(8, false),
            &[(1, 2.94), (3, 11.37), (7, 31.46), (10, 84.16)],
            10.49,
            2416,
        ),
        reported(
            "chain 8",
            rules(8, true),
            &[(1, 2.78), (3, 8.34), (7, 21.33), (10, 55.92)],
            7.05,
            1861,
        ),
        reported(
            "step 32",
            wider(32),
            &[(1, 3.24), (3, 7.33), (7, 16.93), (10, 43.79)],
            6.59,
            1472,
        ),
        reported("step 64", wider(64), &[(1, 4.65), (10, 39.98)], 7.51, 1309),
        Reported {
            header: Bytes::ZERO,
            ..reported(
                "no header",
                rules(8, true),
                &[(1, 2.12), (3, 7.55), (7, 20.49), (10, 54.65)],
                5.94,
                1916,
            )
        },
        reported(
            "chain 16",
            rules(16, true),
            &[(1, 2.24), (3, 15.79), (7, 46.17), (10, 131.68)],
            15.55,
            2887,
        ),
        reported("chain 1", rules(1, true), &[(1, 39.84), (10, 37.25)], 34.26, 412),
    ];
    for of in all {
        let table = Table::by_rules(&of.rules).unwrap();
        let (rows, moved) = replay(&trace, &table, of.header);
        let mine: Vec<f64> = rows.iter().skip(1).map(Row::percent).collect();
        let last = rows[10].percent_compacted();
        println!("{}: {mine:.2?}, compacted {last:.2}, moved {moved}", of.name);
        for (step, percent) in of.steps {
            let mine = rows[*step].percent();
            assert!((mine - percent).abs() < 0.05, "{}, {}: {mine}", of.name, STEPS[*step]);
        }
        assert!((last - of.compacted).abs() < 0.05, "{}: {last}", of.name);
        assert!(moved.abs_diff(of.moved) <= of.moved / 20, "{}: {moved} moved", of.name);
    }
}
