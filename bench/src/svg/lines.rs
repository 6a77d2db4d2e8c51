//! The line plot: what changes over time, a line for each contestant, from 0 on a linear axis.

use super::canvas::{Anchor, Canvas, LABELS_WIDTH, LEFT, RIGHT};
use super::plot::{colour, legend, shape};
use super::LinePlot;

const HEIGHT: f64 = 230.0;
/// Steps of an axis, at most.
const STEPS: f64 = 8.0;

/// Where things lie, and the ends of the axes.
struct Frame {
    left: f64,
    top: f64,
    bottom: f64,
    x: (f64, f64),
    y_max: f64,
}

/// Draws the plot below what is on the canvas.
pub(super) fn draw(canvas: &mut Canvas, plot: &LinePlot) {
    canvas.heading(&plot.title, &plot.subtitle);
    legend(canvas, plot.series.iter().map(|line| line.name.as_str()));
    canvas.text("d", Anchor::Start, LEFT, canvas.y + 10.0, &plot.y_title);
    canvas.y += 24.0;
    let points = || plot.series.iter().flat_map(|line| &line.points).filter(|point| drawn(point));
    let fold = |of: fn(f64, f64) -> f64, at: fn(&(f64, f64)) -> f64| points().map(at).reduce(of);
    let frame = Frame {
        left: LEFT + LABELS_WIDTH,
        top: canvas.y,
        bottom: canvas.y + HEIGHT,
        x: (fold(f64::min, |p| p.0).unwrap_or(0.0), fold(f64::max, |p| p.0).unwrap_or(1.0)),
        y_max: fold(f64::max, |p| p.1).filter(|&max| max > 0.0).unwrap_or(1.0),
    };
    axes(canvas, &frame, &plot.x_title);
    for (series, line) in plot.series.iter().enumerate() {
        let points: Vec<_> = line.points.iter().filter(|p| drawn(p)).map(|p| frame.at(p)).collect();
        if points.len() > 1 {
            canvas.path(&format!("w {}", colour(series)), &points, false);
        }
        for (x, y) in points {
            shape(canvas, series, x, y);
        }
    }
}

fn drawn((x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

impl Frame {
    /// Where a point is on the canvas; below the axis it is held on it.
    fn at(&self, &(x, y): &(f64, f64)) -> (f64, f64) {
        let (first, last) = self.x;
        let across = (x - first) / (last - first).max(f64::MIN_POSITIVE);
        let up = y.max(0.0) / self.y_max;
        (self.left + across * (RIGHT - self.left), self.bottom - up * (self.bottom - self.top))
    }
}

fn axes(canvas: &mut Canvas, frame: &Frame, x_title: &str) {
    for y in steps(0.0, frame.y_max) {
        let class = if y == 0.0 { "axis" } else { "grid" };
        let (_, height) = frame.at(&(frame.x.0, y));
        canvas.line(class, frame.left, height, RIGHT, height);
        canvas.text("d", Anchor::End, frame.left - 10.0, height + 4.5, &y.to_string());
    }
    for x in steps(frame.x.0, frame.x.1) {
        let (across, _) = frame.at(&(x, 0.0));
        canvas.text("l", Anchor::Middle, across, frame.bottom + 20.0, &x.to_string());
    }
    canvas.y = frame.bottom + 45.0;
    canvas.text("d", Anchor::Middle, (frame.left + RIGHT) / 2.0, canvas.y, x_title);
    canvas.y += 2.0;
}

/// Round numbers from `min` to `max`: multiples of 1, 2 or 5 times a power of ten.
fn steps(min: f64, max: f64) -> impl Iterator<Item = f64> {
    let least = ((max - min) / STEPS).max(f64::MIN_POSITIVE);
    let decade = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|&s| s >= least);
    let step = step.unwrap_or(least);
    let first = (min / step).ceil();
    (0..=STEPS as u32).map(move |n| (first + f64::from(n)) * step).take_while(move |&x| x <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_within() {
        assert_eq!(steps(0.0, 40_000.0).collect::<Vec<_>>()[..3], [0.0, 5000.0, 10_000.0]);
        assert_eq!(steps(30.0, 120.0).collect::<Vec<_>>(), [40.0, 60.0, 80.0, 100.0, 120.0]);
        assert!(steps(0.0, 0.0).count() <= 1 + STEPS as usize);
    }
}
