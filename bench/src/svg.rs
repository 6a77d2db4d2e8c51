//! Pictures of the reserve as SVG text: who holds which granule, latencies beside the kernel's, and
//! what changes over time.
//!
//! Each picture is one self-contained document [`WIDTH`] units wide, on a card of its own so that
//! it is readable on any page, and turns dark where the viewer prefers that. Colours are told
//! apart by people who do not tell red from green, and series differ in shape too.
//! Units: pages in the map, microseconds in the plot. Numbers that are not finite are not drawn.

mod canvas;
mod frames;
mod frames_text;
mod lines;
mod map;
mod plot;

use glebe::sys::kpage::Use;
use glebe::units::{Bytes, PageSize};

use canvas::Canvas;

/// Width of every picture, in user units (pixels unless scaled).
pub const WIDTH: u32 = 900;

/// Who holds the pages of one granule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapCell {
    /// Pages nobody holds.
    pub free: u64,
    /// Pages of first-class blocks.
    pub first_class: u64,
    /// Pages lent to tenants.
    pub tenant: u64,
}

/// A reserve, granule by granule in address order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveMap {
    /// Heading; long ones are broken into lines.
    pub title: String,
    /// What the picture shows, under the heading.
    pub subtitle: String,
    /// Size of the pages that the cells count.
    pub page: PageSize,
    /// The granules. Where there are more than fit, neighbours share a square.
    pub cells: Vec<MapCell>,
}

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Which request: a place on the x axis, the same for every series. After a line feed, a second
    /// line for the axis.
    pub label: String,
    /// Fastest request.
    pub min_us: f64,
    /// Median.
    pub median_us: f64,
    /// Slowest request.
    pub max_us: f64,
}

/// Latencies of one contestant.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// What it did; a request it could not do is left out.
    pub points: Vec<Point>,
}

/// Latencies by request, on a logarithmic axis from 0.1 us to 10 s.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyPlot {
    /// Heading; long ones are broken into lines.
    pub title: String,
    /// What the picture shows, under the heading.
    pub subtitle: String,
    /// Name of the x axis.
    pub x_title: String,
    /// The contestants; the first one's medians are written beside its points.
    pub series: Vec<Series>,
}

/// What one contestant comes to over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Time and value.
    pub points: Vec<(f64, f64)>,
}

/// Values over time, both on linear axes.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePlot {
    /// Heading; long ones are broken into lines.
    pub title: String,
    /// What the picture shows, under the heading.
    pub subtitle: String,
    /// Name of the x axis, with its unit.
    pub x_title: String,
    /// Name of the y axis, with its unit.
    pub y_title: String,
    /// The contestants.
    pub series: Vec<Line>,
}

/// Physical memory and what it is used for, block by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameMap {
    /// Heading; long ones are broken into lines.
    pub title: String,
    /// What the picture shows, under the heading.
    pub subtitle: String,
    /// Bytes of a block.
    pub block: Bytes,
    /// The blocks, by frame number. Where there are more than fit, neighbours share a place.
    pub uses: Vec<Use>,
}

/// Physical memory as lines of text of at most `columns` characters.
#[must_use]
pub fn frames_text(map: &FrameMap, columns: usize) -> String {
    frames_text::draw(map, columns)
}

/// Draws physical memory.
#[must_use]
pub fn frames(map: &FrameMap) -> String {
    let mut canvas = Canvas::new(&map.title);
    frames::draw(&mut canvas, map);
    canvas.finish()
}

/// Draws what changes over time, one plot below another; the first one's title is the picture's.
#[must_use]
pub fn lines(plots: &[LinePlot]) -> String {
    let mut canvas = Canvas::new(plots.first().map_or("", |plot| &plot.title));
    for (nth, plot) in plots.iter().enumerate() {
        if nth > 0 {
            canvas.gap();
        }
        lines::draw(&mut canvas, plot);
    }
    canvas.finish()
}

/// Draws who holds what.
#[must_use]
pub fn map(map: &ReserveMap) -> String {
    let mut canvas = Canvas::new(&map.title);
    map::draw(&mut canvas, map);
    canvas.finish()
}

/// Draws latencies.
#[must_use]
pub fn latency(plot: &LatencyPlot) -> String {
    let mut canvas = Canvas::new(&plot.title);
    plot::draw(&mut canvas, plot);
    canvas.finish()
}

/// Draws both, the map above.
#[must_use]
pub fn picture(map: &ReserveMap, plot: &LatencyPlot) -> String {
    let mut canvas = Canvas::new(&map.title);
    map::draw(&mut canvas, map);
    canvas.gap();
    plot::draw(&mut canvas, plot);
    canvas.finish()
}

#[cfg(test)]
mod tests;
