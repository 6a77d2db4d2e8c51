//! The latency plot: for each request and contestant a whisker from fastest to slowest and a mark
//! at the median, on a logarithmic axis.

use super::canvas::{width, Anchor, Canvas, LABELS_WIDTH, LEFT, RIGHT};
use super::{LatencyPlot, Point, Series};

/// Ends of the y axis as powers of ten of a microsecond: 0.1 us to 10 s.
const DECADE_MIN: i32 = -1;
const DECADE_MAX: i32 = 7;

/// Height of a decade.
const DECADE_HEIGHT: f64 = 46.0;

/// Colours in the style sheet; a further series begins again.
const COLOURS: usize = 6;

/// Where things lie.
struct Frame {
    left: f64,
    top: f64,
    bottom: f64,
    pitch: f64,
    labels: Vec<String>,
}

/// A whisker and its mark.
#[derive(Clone, Copy)]
struct Mark {
    series: usize,
    x: f64,
    low: f64,
    mid: f64,
    high: f64,
}

/// Draws the plot below what is on the canvas.
pub(super) fn draw(canvas: &mut Canvas, plot: &LatencyPlot) {
    canvas.heading(&plot.title, &plot.subtitle);
    legend(canvas, plot.series.iter().map(|one| one.name.as_str()));
    canvas.text("d", Anchor::Start, LEFT, canvas.y + 10.0, "time per request, logarithmic");
    canvas.y += 24.0;
    let frame = Frame::new(canvas.y, &plot.series);
    axes(canvas, &frame, &plot.x_title);
    let marks = marks(&frame, &plot.series);
    for series in 0..plot.series.len() {
        let line: Vec<_> =
            marks.iter().filter(|m| m.series == series).map(|m| (m.x, m.mid)).collect();
        if line.len() > 1 {
            canvas.path(&format!("c {}", colour(series)), &line, false);
        }
    }
    for mark in &marks {
        whisker(canvas, mark);
    }
    values(canvas, &frame, &marks, &plot.series);
}

/// Names with their marks, in as many lines as they need.
pub(super) fn legend<'a>(canvas: &mut Canvas, names: impl Iterator<Item = &'a str>) {
    let mut x = LEFT;
    for (i, name) in names.enumerate() {
        let wide = 18.0 + width(name, 13.0) + 24.0;
        if x > LEFT && x + wide > RIGHT {
            x = LEFT;
            canvas.y += 22.0;
        }
        shape(canvas, i, x + 7.0, canvas.y + 7.0);
        canvas.text("l", Anchor::Start, x + 18.0, canvas.y + 11.5, name);
        x += wide;
    }
    canvas.y += 34.0;
}

impl Frame {
    fn new(top: f64, series: &[Series]) -> Self {
        let mut labels: Vec<String> = Vec::new();
        for point in series.iter().flat_map(|s| &s.points) {
            if !labels.contains(&point.label) {
                labels.push(point.label.clone());
            }
        }
        let left = LEFT + LABELS_WIDTH;
        let pitch = (RIGHT - left) / labels.len().max(1) as f64;
        let bottom = top + f64::from(DECADE_MAX - DECADE_MIN) * DECADE_HEIGHT;
        Self { left, top, bottom, pitch, labels }
    }

    /// Height of a latency, held within the axis; `None` for what is no number.
    fn y(&self, us: f64) -> Option<f64> {
        if us.is_nan() {
            return None;
        }
        let (low, high) = (f64::from(DECADE_MIN), f64::from(DECADE_MAX));
        let decade = us.max(f64::MIN_POSITIVE).log10().clamp(low, high);
        Some(self.bottom - (decade - low) * DECADE_HEIGHT)
    }
}

fn axes(canvas: &mut Canvas, frame: &Frame, x_title: &str) {
    for (i, label) in frame.labels.iter().enumerate() {
        let x = frame.left + i as f64 * frame.pitch;
        if i % 2 == 0 {
            canvas.rect("band", x, frame.top, (frame.pitch, frame.bottom - frame.top), 0.0);
        }
        for (nth, line) in label.split('\n').take(2).enumerate() {
            let class = if nth == 0 { "l" } else { "d" };
            let y = frame.bottom + 20.0 + 17.0 * nth as f64;
            canvas.text(class, Anchor::Middle, x + frame.pitch / 2.0, y, line);
        }
    }
    for decade in DECADE_MIN..=DECADE_MAX {
        let y = frame.bottom - f64::from(decade - DECADE_MIN) * DECADE_HEIGHT;
        let class = if decade == DECADE_MIN { "axis" } else { "grid" };
        canvas.line(class, frame.left, y, RIGHT, y);
        canvas.text("d", Anchor::End, frame.left - 10.0, y + 4.5, &time(10f64.powi(decade)));
    }
    let middle = (frame.left + RIGHT) / 2.0;
    let two_lines = frame.labels.iter().any(|label| label.contains('\n'));
    canvas.y = frame.bottom + if two_lines { 62.0 } else { 45.0 };
    canvas.text("d", Anchor::Middle, middle, canvas.y, x_title);
    canvas.y += 2.0;
}

/// Contestants stand side by side within a request's column.
fn marks(frame: &Frame, series: &[Series]) -> Vec<Mark> {
    let side = (frame.pitch * 0.72 / series.len().max(1) as f64).min(22.0);
    let mut marks = Vec::new();
    for (i, one) in series.iter().enumerate() {
        let shift = (i as f64 - (series.len() as f64 - 1.0) / 2.0) * side;
        for point in &one.points {
            let column = frame.labels.iter().position(|label| *label == point.label);
            let place = column.and_then(|column| {
                let x = frame.left + (column as f64 + 0.5) * frame.pitch + shift;
                let Point { min_us, median_us, max_us, .. } = *point;
                let [low, mid, high] = [min_us, median_us, max_us].map(|us| frame.y(us));
                Some(Mark { series: i, x, low: low?, mid: mid?, high: high? })
            });
            marks.extend(place);
        }
    }
    marks
}

fn whisker(canvas: &mut Canvas, mark: &Mark) {
    const CAP: f64 = 4.0;
    let Mark { series, x, low, mid, high } = *mark;
    let class = format!("w {}", colour(series));
    canvas.group("whisker");
    canvas.line(&class, x, low, x, high);
    canvas.line(&class, x - CAP, low, x + CAP, low);
    canvas.line(&class, x - CAP, high, x + CAP, high);
    shape(canvas, series, x, mid);
    canvas.end_group();
}

/// The mark of a series: its shape tells as much as its colour.
pub(super) fn shape(canvas: &mut Canvas, series: usize, x: f64, y: f64) {
    let class = format!("m {}", colour(series));
    match series % 4 {
        0 => canvas.circle(&class, x, y, 5.5),
        1 => canvas.rect(&class, x - 4.5, y - 4.5, (9.0, 9.0), 1.0),
        2 => {
            let points = [(x, y - 6.2), (x + 6.2, y), (x, y + 6.2), (x - 6.2, y)];
            canvas.path(&class, &points, true);
        }
        _ => canvas.path(&class, &[(x, y - 6.0), (x + 6.0, y + 4.8), (x - 6.0, y + 4.8)], true),
    }
}

/// Writes the first series' medians under or above its whiskers, where nothing else stands.
fn values(canvas: &mut Canvas, frame: &Frame, marks: &[Mark], series: &[Series]) {
    const SIZE: f64 = 11.0;
    let Some(first) = series.first() else { return };
    let own = marks.iter().filter(|mark| mark.series == 0);
    let drawn = first
        .points
        .iter()
        .filter(|p| [p.min_us, p.median_us, p.max_us].iter().all(|us| !us.is_nan()));
    for (mark, point) in own.zip(drawn) {
        let text = time(point.median_us);
        let half = width(&text, SIZE) / 2.0;
        let free = |top: f64, bottom: f64| {
            top >= frame.top
                && bottom <= frame.bottom - 2.0
                && marks.iter().all(|m| {
                    let beside = (m.x - mark.x).abs() > half + 6.0;
                    let own = std::ptr::eq(m, mark);
                    own || beside || m.high - 7.0 > bottom || m.low + 7.0 < top
                })
        };
        let below = mark.low.max(mark.mid + 6.0) + 15.0;
        let above = mark.high.min(mark.mid - 6.0) - 7.0;
        if let Some(y) = [below, above].into_iter().find(|y| free(y - SIZE, y + 2.0)) {
            canvas.text("v", Anchor::Middle, mark.x, y, &text);
        }
    }
}

pub(super) fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// A latency as people say it, two significant digits.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        _ if us >= 999.5e3 => (us / 1e6, "s"),
        _ if us >= 999.5 => (us / 1e3, "ms"),
        _ => (us, "µs"),
    };
    let decimals = if value < 9.95 { 1 } else { 0 };
    let text = format!("{value:.decimals$}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}
