//! Writes statistics as OpenMetrics text, for Prometheus.
//!
//! Pages become bytes, and nanoseconds become seconds. In a row's name, the base unit replaces
//! `_pages`, `_bytes` or `_ns`. Bucket bounds are inclusive, so each finite bound is one nanosecond
//! below a power of two. Source: OpenMetrics 1.0.0, "Text format" and "Histogram".

use std::fmt::Write;
use std::ops::RangeInclusive;

use super::{Latency, Row, Unit, Value};
use crate::units::Bytes;

#[derive(Debug)]
pub struct Set<'a> {
    pub labels: Vec<(&'static str, String)>,
    pub rows: Vec<Row<'a>>,
}

/// Exponents of the bucket bounds: 2^7 ns (128 ns) to 2^34 ns (17 s).
const POWERS: RangeInclusive<u32> = 7..=34;

pub fn openmetrics(prefix: &str, page: Bytes, sets: &[Set]) -> String {
    families(prefix, page, sets) + "# EOF\n"
}

pub fn openmetrics_of<'a>(
    prefix: &str,
    page: Bytes,
    label: &'static str,
    all: impl Iterator<Item = (&'a str, Vec<Row<'a>>)>,
) -> String {
    let set = |(name, rows): (&str, _)| Set { labels: vec![(label, name.to_owned())], rows };
    openmetrics(prefix, page, &all.map(set).collect::<Vec<_>>())
}

/// Returns the text without its end mark, `# EOF`.
pub fn families(prefix: &str, page: Bytes, sets: &[Set]) -> String {
    let mut out = String::new();
    for row in 0..sets.first().map_or(0, |set| set.rows.len()) {
        family(&mut out, prefix, page, sets, row);
    }
    out
}

fn family(out: &mut String, prefix: &str, page: Bytes, sets: &[Set], row: usize) {
    let Row { name, ref value, what } = sets[0].rows[row];
    let (kind, stem, unit) = match value {
        Value::Counter(unit, _) => ("counter", name, base(*unit)),
        Value::Gauge(unit, _) => ("gauge", name, base(*unit)),
        Value::Durations(family, _) => ("histogram", *family, Some("seconds")),
    };
    let stem = if unit.is_some() { stem.trim_end_matches("_pages") } else { stem };
    let stem = if unit.is_some() { stem.trim_end_matches("_bytes") } else { stem };
    let stem = if unit.is_some() { stem.trim_end_matches("_ns") } else { stem };
    let mut family = format!("{prefix}{stem}");
    if let Some(unit) = unit {
        let _ = write!(family, "_{unit}");
    }
    let _ = writeln!(out, "# TYPE {family} {kind}");
    if let Some(unit) = unit {
        let _ = writeln!(out, "# UNIT {family} {unit}");
    }
    let _ = writeln!(out, "# HELP {family} {}", escape(what));
    for Set { labels, rows } in sets {
        let scaled = |unit, value| match unit {
            Unit::Pages => (u128::from(value) * u128::from(page.get())).to_string(),
            Unit::Nanos => seconds(value),
            Unit::Count | Unit::Bytes => value.to_string(),
        };
        let shown = braced(&mut labels.iter().map(label));
        match &rows[row].value {
            Value::Counter(unit, value) => {
                let _ = writeln!(out, "{family}_total{shown} {}", scaled(*unit, *value));
            }
            Value::Gauge(unit, value) => {
                let _ = writeln!(out, "{family}{shown} {}", scaled(*unit, *value));
            }
            Value::Durations(_, latency) => histogram(out, &family, labels, latency),
        }
    }
}

fn base(unit: Unit) -> Option<&'static str> {
    match unit {
        Unit::Count => None,
        Unit::Pages | Unit::Bytes => Some("bytes"),
        Unit::Nanos => Some("seconds"),
    }
}

fn histogram(out: &mut String, family: &str, labels: &[(&str, String)], latency: &Latency) {
    let mut bucket = |le: &str, count| {
        let le = [("le", le.to_owned())];
        let shown = braced(&mut labels.iter().chain(&le).map(label));
        let _ = writeln!(out, "{family}_bucket{shown} {count}");
    };
    for power in POWERS {
        bucket(&seconds((1 << power) - 1), latency.shorter_than(power));
    }
    bucket("+Inf", latency.count());
    let shown = braced(&mut labels.iter().map(label));
    let _ = writeln!(out, "{family}_sum{shown} {}", seconds(latency.sum()));
    let _ = writeln!(out, "{family}_count{shown} {}", latency.count());
}

/// Returns nanoseconds as seconds with their fraction.
pub fn seconds(nanos: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    format!("{}.{:09}", nanos / SECOND, nanos % SECOND)
}

fn label((name, value): &(&str, String)) -> String {
    format!("{name}=\"{}\"", escape(value))
}

fn braced(labels: &mut dyn Iterator<Item = String>) -> String {
    let labels: Vec<_> = labels.collect();
    if labels.is_empty() {
        return String::new();
    }
    format!("{{{}}}", labels.join(","))
}

fn escape(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::super::Histogram;
    use super::*;

    #[test]
    fn a_bucket_counts_what_does_not_exceed_its_bound() {
        let histogram = Histogram::new();
        for nanos in [127, 128, 255, 1 << 33, (1 << 34) - 1, 1 << 34] {
            histogram.record(nanos);
        }
        let latency = histogram.snapshot();
        let row = |latency| Row { name: "x", value: Value::Durations("x", latency), what: "y" };
        let labels = vec![("a", "\"".to_owned())];
        let set = Set { labels, rows: vec![row(&latency)] };
        let text = openmetrics("p_", Bytes::new(1), &[set]);
        for line in [
            "p_x_seconds_bucket{a=\"\\\"\",le=\"0.000000127\"} 1\n",
            "p_x_seconds_bucket{a=\"\\\"\",le=\"0.000000255\"} 3\n",
            "p_x_seconds_bucket{a=\"\\\"\",le=\"8.589934591\"} 3\n",
            "p_x_seconds_bucket{a=\"\\\"\",le=\"17.179869183\"} 5\n",
            "p_x_seconds_bucket{a=\"\\\"\",le=\"+Inf\"} 6\n",
            "p_x_seconds_sum{a=\"\\\"\"} 42.949673469\n",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
