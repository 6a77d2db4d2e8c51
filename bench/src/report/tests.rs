//! The JSON's form key by key, and the table as a person sees it.

use super::*;
use serde_json::{json, Value};

fn sample() -> Report {
    let mut report = Report::new("reserve", "glebe-bench reserve --quick", true);
    report.row("recall_1", "glebe", "us", &[3.0, 1.0, 2.0]);
    report.remark("2 of 5 failed");
    report.row("recall_1", "thp", "us", &[]);
    report.absent("recall_1", "dpdk", "us", "not installed: apt-get install dpdk-dev");
    report.ratio("max_32000_vs_best_kernel", 131.000_000_4);
    report.ratio("p99_1_vs_best_kernel", 1.0 / 0.0);
    report.check("wrong_bytes", 0);
    report.note("Kernel memory is zeroed, glebe's is not.");
    report
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn json_has_the_fixed_form() {
    let text = sample().json();
    let json: Value = serde_json::from_str(&text).unwrap();
    let top =
        ["bench", "checks", "command", "date", "machine", "quick", "ratios", "rows", "version"];
    assert_eq!(keys(&json), top);
    let machine = ["cpus", "kernel", "memory_bytes", "page_bytes", "privileged", "thp"];
    assert_eq!(keys(&json["machine"]), machine);
    assert_eq!(json["version"], 1);
    assert_eq!(json["quick"], true);
    assert_eq!(json["command"], "glebe-bench reserve --quick");
    assert_eq!(
        json["rows"][0],
        json!({"case": "recall_1", "who": "glebe", "unit": "us", "median": 2.0, "p99": 3.0,
               "max": 3.0, "min": 1.0, "mean": 2.0, "stdev": 1.0, "runs": 3,
               "note": "2 of 5 failed"})
    );
    let absent = ["case", "note", "unit", "who"];
    assert_eq!(keys(&json["rows"][1]), absent);
    assert_eq!(keys(&json["rows"][2]), absent);
    assert_eq!(json["ratios"]["max_32000_vs_best_kernel"], 131.0);
    assert_eq!(json["ratios"]["p99_1_vs_best_kernel"], Value::Null);
    assert_eq!(json["checks"], json!({"wrong_bytes": 0}));
    assert!(text.find("\"bench\"") < text.find("\"machine\""), "keys in the order of reading");
    assert!(text.ends_with("}\n"));
    let lines: Vec<_> = text.lines().filter(|line| line.contains("recall_1")).collect();
    assert_eq!(lines.len(), 3, "one row a line: {text}");
    let empty: Value = serde_json::from_str(&Report::new("none", "", false).json()).unwrap();
    assert_eq!((&empty["rows"], &empty["checks"]), (&json!([]), &json!({})));
}

#[test]
fn a_check_that_was_not_made_is_no_zero() {
    let mut report = sample();
    report.unmeasured("oom_kills", "no memory cgroup");
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["checks"], json!({"wrong_bytes": 0, "oom_kills": null}));
    let text = report.text();
    assert!(text.contains("oom_kills    not measured: no memory cgroup\n"), "{text}");
    assert!(report.passed());
    report.check("oom_kills", 1);
    report.unmeasured("oom_kills", "no memory cgroup");
    assert!(!report.passed() && report.text().contains("oom_kills    1  WRONG\n"));
}

#[test]
fn checks_add_up_and_decide() {
    let mut report = sample();
    assert!(report.passed());
    report.check("wrong_bytes", 2);
    report.check("wrong_bytes", 1);
    assert!(!report.passed());
    assert!(report.json().contains("\"wrong_bytes\": 3"));
    assert!(report.text().contains("3  WRONG"));
}

#[test]
fn figures_keep_their_digits() {
    assert_eq!(rounded(131.000_000_4), Some(131.0));
    assert_eq!(rounded(1_234_567.8), Some(1_234_570.0));
    assert_eq!(rounded(0.000_012_345_678), Some(0.000_012_345_7));
    assert_eq!((rounded(f64::NAN), rounded(f64::NEG_INFINITY)), (None, None));
    let shown = [0.0, 0.012_345, 1.234_56, 27.04, 123_456.7].map(|v| figure(Some(v)));
    assert_eq!(shown, ["0", "0.01235", "1.235", "27.04", "123457"]);
}
