//! Tests the table's forms.

use glebe_testing::openmetrics;

use super::*;

fn written(stats: &Stats, format: Format) -> String {
    let mut text = String::new();
    stats.write(format, &mut text).unwrap();
    text
}

fn numbered() -> Stats {
    Stats { live_bytes: 1, looks: u64::MAX, group: 3, ..Stats::default() }
}

#[test]
fn a_strict_reader_takes_it_as_openmetrics() {
    let families = openmetrics::parse(&written(&numbered(), Format::OpenMetrics)).unwrap();
    assert_eq!(families.len(), ROWS);
    for (family, row) in families.iter().zip(numbered().rows()) {
        assert_eq!(family.name, format!("glebe_malloc_{}", row.name));
        assert_eq!(family.help, row.what);
        assert_eq!(family.unit == "bytes", row.name.ends_with("_bytes"));
        assert_eq!(family.kind == "counter", row.kind == Kind::Counter);
        assert_eq!(family.samples.len(), 1);
        assert!((family.samples[0].value - row.value as f64).abs() < 1.0);
    }
}

#[test]
fn json_is_one_object_on_one_line() {
    let text = written(&numbered(), Format::Json);
    let inside = text.strip_prefix('{').unwrap().strip_suffix("}\n").unwrap();
    assert_eq!(inside.split(',').count(), ROWS);
    for (member, row) in inside.split(',').zip(numbered().rows()) {
        assert_eq!(member, format!("\"{}\":{}", row.name, row.value));
    }
}

#[test]
fn text_has_a_sentence_and_a_line_a_number_with_its_meaning() {
    let text = written(&numbered(), Format::Text);
    let mut lines = text.lines();
    let first = "In memory: 0.0 MiB. How much of it the kernel may take is unknown here.";
    assert_eq!(lines.next(), Some(first));
    assert_eq!(lines.clone().count(), ROWS);
    for (line, row) in lines.zip(numbered().rows()) {
        let words: Vec<_> = line.split_whitespace().collect();
        let (name, value) = match row.name.strip_suffix("_bytes") {
            Some(name) => (name, "0.0".to_owned()),
            None => (row.name, row.value.to_string()),
        };
        assert_eq!(words[..2], [name, &value]);
        assert!(line.ends_with(row.what) && line.len() < 120, "{line}");
    }
}

#[test]
fn text_says_bytes_as_mebibytes() {
    let stats = Stats {
        rss_bytes: (24 << 20) + (1 << 19),
        volatile_resident_bytes: 3 << 20,
        purged_bytes: u64::MAX,
        audit: 1,
        ..Stats::default()
    };
    let text = written(&stats, Format::Text);
    let first = "In memory: 24.5 MiB. The kernel may take 3.0 MiB of it now, and took \
        17592186044415.9 MiB before.\n";
    assert!(text.starts_with(first), "{text}");
    assert!(text.contains("\nrss                       24.5 MiB  resident memory of"), "{text}");
}

#[test]
fn the_resident_set_is_the_kernels() {
    let block = vec![1_u8; 64 << 20];
    let rss = rss_bytes();
    assert!(rss >= block.len() as u64 && rss < 4 << 30, "{rss}");
}
