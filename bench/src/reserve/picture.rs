//! The demo as a picture: the reserve at its fullest above the latencies of all contestants.

use glebe::reserve::GranuleUse;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use super::table::Line;
use crate::summary::Summary;
use crate::svg::{self, LatencyPlot, MapCell, Point, ReserveMap, Series};

/// Draws both.
#[must_use]
pub fn draw(len: Bytes, fullest: &[GranuleUse], lines: &[Line], source: &str) -> String {
    let cell = |granule: &GranuleUse| MapCell {
        free: granule.free.get(),
        first_class: granule.first_class.get(),
        tenant: granule.tenant.get(),
    };
    let map = ReserveMap {
        title: format!("A {len} reserve at its fullest"),
        subtitle: format!(
            "While first class held a block, every other page worked as a cache of file pages: \
             {source}."
        ),
        page: page_size(),
        cells: fullest.iter().map(cell).collect(),
    };
    let mut series: Vec<Series> = Vec::new();
    for line in lines {
        let Some(point) = point(line) else { continue };
        match series.iter_mut().find(|one| one.name == line.who) {
            Some(one) => one.points.push(point),
            None => series.push(Series { name: line.who.into(), points: vec![point] }),
        }
    }
    let plot = LatencyPlot {
        title: "Time to get pages while files are read through the reserve".into(),
        subtitle: "Mark at the median, whisker from fastest to slowest. Kernel memory comes \
                   zeroed, the reserve's does not."
            .into(),
        x_title: "pages per request".into(),
        series,
    };
    svg::picture(&map, &plot)
}

fn point(line: &Line) -> Option<Point> {
    let s = Summary::of(&line.wall_us)?;
    let bytes = Pages::new(line.pages).bytes(page_size());
    let label = format!("{}\n{bytes}", line.pages);
    Some(Point { label, min_us: s.min, median_us: s.median, max_us: s.max })
}
