//! Writes the pictures with made-up figures, to look at while changing how they are drawn:
//! `cargo run -p glebe-bench --example pictures DIR`.

use std::path::PathBuf;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe_bench::svg::{self, LatencyPlot, MapCell, Point, ReserveMap, Series};
use glebe_bench::whole_file;

const GRANULE_PAGES: u64 = 512;

fn main() -> Result<(), OsError> {
    let dir = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| ".".into()));
    let (map, plot) = (map(), plot());
    for (name, text) in [
        ("map.svg", svg::map(&map)),
        ("latency.svg", svg::latency(&plot)),
        ("both.svg", svg::picture(&map, &plot)),
    ] {
        whole_file::write(&dir.join(name), text.as_bytes())?;
    }
    Ok(())
}

fn map() -> ReserveMap {
    let cell = |i: u64| match i {
        10..73 => MapCell { free: 0, first_class: GRANULE_PAGES, tenant: 0 },
        120..124 => MapCell { free: 0, first_class: GRANULE_PAGES, tenant: 0 },
        9 | 73 => MapCell { free: 12, first_class: 260, tenant: GRANULE_PAGES - 272 },
        _ => {
            let free = if i % 7 == 3 { i * 37 % 200 } else { i % 11 };
            MapCell { free, first_class: 0, tenant: GRANULE_PAGES - free }
        }
    };
    ReserveMap {
        title: "A 512 MiB reserve at its fullest".into(),
        subtitle: "Made-up figures: first class holds 136 MiB in two blocks that are each \
                   physically contiguous; the rest works as a cache of compressed tiles until it \
                   is called back."
            .into(),
        page: page_size(),
        cells: (0..256).map(cell).collect(),
    }
}

fn plot() -> LatencyPlot {
    let sizes = [1u32, 512, 1024, 2048, 4096, 8192, 16384, 32000];
    let series = |name: &str, base: f64, each: f64, low: f64, high: f64| Series {
        name: name.into(),
        points: sizes
            .iter()
            .map(|&pages| {
                let median_us = base + f64::from(pages) * each;
                let bytes = glebe::units::Pages::new(u64::from(pages)).bytes(page_size());
                Point {
                    label: format!("{pages}\n{bytes}"),
                    min_us: median_us * low,
                    median_us,
                    max_us: median_us * high,
                }
            })
            .collect(),
    };
    LatencyPlot {
        title: "Time to get contiguous pages while the machine is compiling".into(),
        subtitle: "Made-up figures: 32 requests of each size; mark at the median, whisker from \
                   fastest to slowest. Kernel memory comes zeroed, the reserve's does not."
            .into(),
        x_title: "pages per request".into(),
        series: vec![
            series("glebe reserve", 0.4, 0.0011, 0.6, 9.0),
            series("surplus hugetlb", 90.0, 0.6, 0.8, 30.0),
            series("THP + populate", 2.5, 0.55, 0.7, 6.0),
            series("mmap + populate", 1.8, 1.1, 0.8, 4.0),
        ],
    }
}
