//! What a report must name, and what it may not say of what was not looked at.

use super::*;

/// A report that names all there is without a group.
fn without_pressure() -> Report {
    let mut report = Report::new(NAME, "", true);
    CASES.iter().for_each(|case| report.row(case, "glebe", "us", &[1.0]));
    RATIOS.iter().for_each(|ratio| report.ratio(ratio, 2.0));
    CHECKS.iter().for_each(|check| report.check(check, 0));
    report
}

#[test]
fn without_a_group_no_check_of_one_is_zero_and_all_is_named() {
    let mut report = without_pressure();
    assert_eq!(missing(&report).len(), 5 + 6 + 9);
    without_groups(&mut report, "no memory cgroup: none is mounted");
    assert_eq!(missing(&report), Vec::<&str>::new());
    let json = report.json();
    for check in CHECKS_OF_GROUPS {
        assert!(json.contains(&format!("\"{check}\": null")), "{json}");
    }
    assert!(json.contains("\"working_set_kept\": null"), "{json}");
    assert!(report.passed() && report.text().contains("not measured: no memory cgroup"));
}

#[test]
fn what_has_no_name_is_missing() {
    let mut report = Report::new(NAME, "", true);
    without_groups(&mut report, "");
    assert_eq!(missing(&report).len(), CASES.len() + RATIOS.len() + CHECKS.len());
}

#[test]
fn a_need_that_purged_nothing_or_all_is_a_wrong_check() {
    let all = purge::REGION.pages_down(page_size()).get();
    for (lost_pages, purged, kept) in [([900, 0, 0, 0], 0, 0), ([0; 4], 1, 0), ([all / 4; 4], 0, 1)]
    {
        let mut report = Report::new(NAME, "", true);
        let taken = Taken { need_pages: 800, lost_pages };
        tell_purge(
            &mut report,
            "glebe",
            800,
            &[&taken, &Taken { lost_pages: [1; 4], ..taken.clone() }],
        );
        let json = report.json();
        assert!(json.contains(&format!("\"{NOTHING_PURGED}\": {purged}")), "{json}");
        assert!(json.contains(&format!("\"{NOTHING_KEPT}\": {kept}")), "{json}");
    }
}

#[test]
fn the_worse_engine_is_the_one_that_counts() {
    let options = Options::default();
    let of = |refused: Vec<(Which, String)>, scan: f64, tag: f64| {
        let mut bench =
            Benchmark { options: &options, report: Report::new(NAME, "", true), refused };
        bench.worse("r", |which| if which == Which::Scan { scan } else { tag });
        let json: serde_json::Value = serde_json::from_str(&bench.report.json()).unwrap();
        json["ratios"]["r"].as_f64()
    };
    assert_eq!(of(vec![], 3.0, 2.0), Some(2.0));
    assert_eq!(of(vec![], 1.0, 2.0), Some(1.0));
    // An engine that is here and gave no figure is not passed over.
    assert_eq!(of(vec![], f64::NAN, 2.0), None);
    assert_eq!(of(vec![], 2.0, f64::NAN), None);
    assert_eq!(of(vec![(Which::Scan, "no".into())], f64::NAN, 2.0), Some(2.0));
}
