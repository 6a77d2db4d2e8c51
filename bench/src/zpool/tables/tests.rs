//! The trace against the rows of a report; tables against the kernel's on it.

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

/// What a pool is to count: an entry of a handle, a back pointer, a header.
const METADATA: Metadata = Metadata {
    object: Bytes::new(8),
    slot: Bytes::new(4),
    zspage: Bytes::new(64),
    class: Bytes::ZERO,
    left_percent: 100,
};

/// What the kernel has beside its zspages: a handle, a `struct zspage`.
const KERNEL: Metadata = Metadata {
    object: Bytes::new(8),
    slot: Bytes::ZERO,
    zspage: Bytes::new(56),
    class: Bytes::ZERO,
    left_percent: 100,
};

/// Percent held beyond what is stored, with metadata, of steps that are compacted at once.
type Percents = Vec<f64>;

/// A step of a pool that has the same table at every step.
fn with_table(trace: &Trace, table: &Table, header: usize, metadata: &Metadata) -> Percents {
    (1..STEPS.len()).map(|step| with_all(trace, step, table, header, metadata)).collect()
}

fn with_all(trace: &Trace, step: usize, table: &Table, header: usize, of: &Metadata) -> f64 {
    let (held, beside) = compacted(trace, step, table, header, of);
    percent(held + beside, stored(trace, step))
}

/// A pool that chooses its table at every step, with `next`, from the one it had.
fn rechosen(
    trace: &Trace,
    rules: &Rules,
    next: impl Fn(Option<Table>, &Histogram) -> Table,
) -> Percents {
    let mut table = None;
    let mut percents = Vec::new();
    for step in 1..STEPS.len() {
        let now = next(table.take(), &histogram(trace, step, rules));
        percents.push(with_all(trace, step, &now, 0, &METADATA));
        table = Some(now);
    }
    percents
}

#[test]
fn fitted_tables_hold_less_than_the_kernel_at_every_step() {
    let trace = Trace::load().unwrap();
    let table = Table::by_rules(&rules(8, true)).unwrap();
    let kernel = with_table(&trace, &table, 8, &KERNEL);
    println!("kernel: {kernel:.2?}");
    for chain in [4, 8, 16] {
        let table = Table::by_rules(&rules(chain, true)).unwrap();
        let percents = with_table(&trace, &table, 0, &METADATA);
        println!("rules, chain {chain}: {percents:.2?}");
        // No table of the kernel's rules is enough.
        assert!(percents[9] > 7.1);
    }
    for (step, chain) in [(16, 8), (16, 16), (8, 8), (8, 16), (4, 8), (4, 16)] {
        let rules = Rules { step: Bytes::new(step), ..rules(chain, true) };
        let afresh = |_, now: &Histogram| Table::fitted(now, &METADATA);
        let kept = |had: Option<Table>, now: &Histogram| {
            let fitted = Table::fitted(now, &METADATA);
            let held = |table: &Table| table.expected(now, &METADATA).held;
            had.filter(|had| held(&fitted) > 0.995 * held(had)).unwrap_or(fitted)
        };
        let moved = |had: Option<Table>, now: &Histogram| {
            let fitted = |had: Table| had.refitted(now, &METADATA, 0.01);
            had.map_or_else(|| Table::fitted(now, &METADATA), fitted)
        };
        let ways = [
            ("fitted afresh", rechosen(&trace, &rules, afresh)),
            ("fitted where that saves 0.5 %", rechosen(&trace, &rules, kept)),
            ("refitted, a byte moved for 0.01", rechosen(&trace, &rules, moved)),
        ];
        for (way, percents) in ways {
            println!("step {step}, chain {chain}, {way}: {percents:.2?}");
            assert!(percents.iter().zip(&kernel).all(|(mine, kernel)| mine < kernel), "{way}");
            assert!(percents[9] < 6.5, "{way}");
        }
    }
}

#[test]
fn compacted_by_arithmetic_is_compacted_by_the_model() {
    let trace = Trace::load().unwrap();
    for (header, merge) in [(0, true), (8, true), (8, false)] {
        let table = Table::by_rules(&rules(8, merge)).unwrap();
        let (rows, _) = replay(&trace, &table, Bytes::new(header as u64));
        for (step, row) in rows.iter().enumerate() {
            let (held, _) = compacted(&trace, step, &table, header, &METADATA);
            assert_eq!(held, row.compacted, "{}", STEPS[step]);
        }
    }
}
