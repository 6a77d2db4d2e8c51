//! Every document is read back by a small XML reader and its elements are counted.

use super::*;
use std::collections::HashMap;

fn page() -> PageSize {
    PageSize::new(4 << 10).unwrap()
}

fn sample_map(cells: Vec<MapCell>) -> ReserveMap {
    ReserveMap { title: "Reserve".into(), subtitle: String::new(), page: page(), cells }
}

fn point(label: &str, min_us: f64, median_us: f64, max_us: f64) -> Point {
    Point { label: label.into(), min_us, median_us, max_us }
}

fn sample_plot(series: Vec<Series>) -> LatencyPlot {
    let (title, subtitle) = ("Latency".into(), "a < b & c".into());
    LatencyPlot { title, subtitle, x_title: "pages".into(), series }
}

/// Elements by name and class, or the first thing that is not well-formed. Knows what the canvas
/// writes: elements, double-quoted attributes, text, the predefined entities.
fn read(svg: &str) -> Result<HashMap<String, usize>, String> {
    let mut counts = HashMap::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg.trim_end();
    while !rest.is_empty() {
        let Some(text) = rest.strip_prefix('<') else {
            let end = rest.find('<').ok_or("text after the root")?;
            text_is_plain(&rest[..end])?;
            rest = &rest[end..];
            continue;
        };
        let end = text.find('>').ok_or("a tag without an end")?;
        let (tag, after) = (&text[..end], &text[end + 1..]);
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            if open.is_empty() && !after.is_empty() {
                return Err("something after the root".into());
            }
        } else {
            let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let name = tag.split(' ').next().unwrap_or("");
            let attributes = attributes(&tag[name.len()..])?;
            let class = attributes.get("class").copied().unwrap_or("");
            *counts.entry(format!("{name}.{class}")).or_insert(0) += 1;
            if !empty {
                open.push(name);
            }
        }
        rest = after;
    }
    open.is_empty().then_some(counts).ok_or_else(|| format!("{open:?} left open"))
}

fn attributes(mut text: &str) -> Result<HashMap<&str, &str>, String> {
    let mut found = HashMap::new();
    while !text.is_empty() {
        let rest = text.strip_prefix(' ').ok_or_else(|| format!("no space before {text}"))?;
        let (name, rest) = rest.split_once("=\"").ok_or_else(|| format!("no value: {rest}"))?;
        let (value, rest) = rest.split_once('"').ok_or_else(|| format!("no end: {rest}"))?;
        if name.contains(['"', ' ']) || found.insert(name, value).is_some() {
            return Err(format!("attribute {name:?} is wrong or there twice"));
        }
        text_is_plain(value)?;
        text = rest;
    }
    Ok(found)
}

fn text_is_plain(text: &str) -> Result<(), String> {
    if text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{ffff}') {
        return Err(format!("{text:?} holds a control character"));
    }
    for piece in text.split('&').skip(1) {
        if !["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| piece.starts_with(entity)) {
            return Err(format!("&{piece} is no entity"));
        }
    }
    Ok(())
}

fn checked(svg: &str) -> HashMap<String, usize> {
    let counts = read(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
    for bad in ["NaN", "inf", "-0\"", "e-"] {
        let values = svg.split('"').skip(1).step_by(2);
        for value in values {
            assert!(!value.contains(bad), "{bad} in {value:?}");
        }
    }
    counts
}

#[test]
fn the_reader_sees_what_is_wrong() {
    assert!(read("<a><b/></a>").is_ok());
    for bad in ["<a><b></a>", "<a>&x</a>", "<a/>x", "<a b=\"1\" b=\"2\"/>", "<a", "<a>\u{1}</a>"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_cell_is_drawn() {
    let mixed = MapCell { free: 100, first_class: 200, tenant: 212 };
    for count in [0, 1, 48, 49, 512, 513, 1536] {
        let counts = checked(&map(&sample_map(vec![mixed; count])));
        assert_eq!(counts.get("g.cell").copied().unwrap_or(0), count);
    }
    let shared = checked(&map(&sample_map(vec![mixed; 4_096])));
    assert_eq!(shared["g.cell"], 4_096usize.div_ceil(3));
    // A square of one holder is one rectangle; beside it legend and bar have one of each.
    let first = MapCell { first_class: 512, ..MapCell::default() };
    let tenant = MapCell { tenant: 512, ..MapCell::default() };
    let counts = checked(&map(&sample_map(vec![first, tenant, tenant, mixed])));
    assert_eq!((counts["rect.first"], counts["rect.tenant"]), (2 + 2, 3 + 2));
    assert_eq!(counts["rect.free"], 1 + 2);
}

#[test]
fn counts_past_any_memory_do_not_overflow() {
    let huge = MapCell { free: u64::MAX, first_class: u64::MAX, tenant: u64::MAX };
    checked(&map(&sample_map(vec![huge, huge, MapCell::default()])));
}

#[test]
fn every_point_is_drawn_or_is_no_number() {
    let series = vec![
        Series {
            name: "glebe".into(),
            points: vec![
                point("1\n4 KiB", 0.2, 0.4, 12.0),
                point("512", 0.0, -3.0, f64::INFINITY),
                point("1024", f64::NAN, 1.0, 2.0),
            ],
        },
        Series { name: "thp".into(), points: vec![point("512", 90.0, 300.0, 9e9)] },
        Series { name: "none".into(), points: vec![] },
    ];
    let counts = checked(&latency(&sample_plot(series)));
    assert_eq!(counts["g.whisker"], 3);
    checked(&latency(&sample_plot(vec![])));
}

#[test]
fn text_is_escaped() {
    let mut both = sample_map(vec![MapCell::default()]);
    both.title = "<script>&\"\u{0}".into();
    let name = "a<b>\u{1b}[2J".to_string();
    let plot = sample_plot(vec![Series { name, points: vec![point("<&>", 1.0, 1.0, 1.0)] }]);
    let svg = picture(&both, &plot);
    checked(&svg);
    assert!(!svg.contains("<script>"));
    assert!(svg.contains("&lt;&amp;&gt;"));
}

#[test]
fn lines_have_a_mark_for_each_point_that_is_a_number() {
    let line =
        |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.into() };
    let plot = |series| LinePlot {
        title: "Runs".into(),
        subtitle: "a < b".into(),
        x_title: "minutes".into(),
        y_title: "pages".into(),
        series,
    };
    let first = plot(vec![
        line("one", &[(0.0, 3.0), (1.0, f64::NAN), (2.0, 5.0)]),
        line("two", &[(0.0, 1.0)]),
    ]);
    let svg = lines(&[first, plot(vec![line("one", &[])])]);
    let counts = read(&svg).expect("well-formed");
    // One mark a point, and one in each legend.
    assert_eq!((counts["circle.m s0"], counts["rect.m s1"]), (4, 2));
    assert_eq!((counts["path.w s0"], counts.get("path.w s1")), (1, None));
    assert!(read(&lines(&[])).is_ok());
}

#[test]
fn physical_memory_has_a_bar_for_each_run() {
    use Use::{Absent, Free, Other, PoolIdle, PoolInUse, Thp};
    let map = |uses: Vec<Use>| FrameMap {
        title: "Frames".into(),
        subtitle: "a < b".into(),
        block: Bytes::mib(2),
        uses,
    };
    let mut uses = vec![PoolIdle, PoolIdle, PoolInUse, Absent, Thp, Other, PoolIdle];
    uses.extend(vec![Absent; 1024]);
    uses.extend([Free; 3]);
    let counts = read(&frames(&map(uses))).expect("well-formed");
    // One for the legend, and one for each run.
    assert_eq!((counts["rect.tenant"], counts["rect.first"], counts["rect.free"]), (3, 2, 2));
    assert!(read(&frames(&map(Vec::new()))).is_ok());
    assert!(read(&frames(&map(vec![Other; 1 << 17]))).is_ok());
}
