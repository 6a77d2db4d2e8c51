//! The picked reserve: a bar of its memory, and the times to give a block.

use glebe::page_size;
use glebe::units::Bytes;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};
use ratatui::Frame;

use super::super::lent::LentNow;
use super::super::look::Seen;
use super::super::screen::Screen;
use super::bar::{bar, legend, Stripe};
use super::{colored, heading};

/// Lines about the picked reserve, and lines of bars with its times.
pub const DETAIL: u16 = 4;
pub const TIMES: u16 = 2;

pub fn detail(screen: &Screen, seen: &Seen, has_bars: bool, frame: &mut Frame, area: Rect) {
    let numbers = &seen.numbers;
    let lent = screen.look().and_then(|look| look.lent_from(seen));
    let stripes = stripes(seen, lent);
    let promised = match lent.map_or(0, LentNow::promised) {
        0 => String::new(),
        promised => format!("; promised {}", Bytes::new(promised)),
    };
    let [p50, p99, max] = [numbers.p50, numbers.p99, numbers.max].map(time);
    let given = format!(
        "{} blocks given: half within {p50}, 99 % within {p99}, the slowest {max}",
        numbers.given
    );
    let title = format!("process {}, reserve {}: {}", seen.pid, seen.number, seen.command);
    // A narrow terminal cuts the times first.
    let waits = shown(screen, seen, area);
    let longest = waits.iter().max().filter(|longest| **longest > 0 && has_bars);
    let times = longest.map_or_else(String::new, |it| format!("; bars: means up to {}", time(*it)));
    let lines = vec![
        Line::from(vec![Span::styled(title, heading()), Span::raw(promised + &times)]),
        bar(screen, usize::from(area.width), &stripes),
        Line::from(legend(&stripes)),
        Line::from(given),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

pub fn times(screen: &Screen, seen: &Seen, frame: &mut Frame, area: Rect) {
    let waits = shown(screen, seen, area);
    let line = Sparkline::default().data(waits).style(colored(screen, Color::Yellow));
    frame.render_widget(line, area);
}

/// Returns the last times, one for each column.
fn shown(screen: &Screen, seen: &Seen, area: Rect) -> Vec<u64> {
    let mut waits = screen.waits(seen);
    waits.split_off(waits.len().saturating_sub(usize::from(area.width)))
}

/// Leases are blocks too. The sum has those that the daemon took over from an earlier one, which
/// are of no reserve, because no row of the list is marked as such.
fn stripes(seen: &Seen, lent: Option<&LentNow>) -> Vec<Stripe> {
    let numbers = &seen.numbers;
    let stripe = |sign, color, pages, name| Stripe { sign, color, pages, name };
    let leased = lent.map(|lent| Bytes::new(lent.leased()).pages_down(page_size()).get());
    let leased = leased.map(|leased| leased.min(numbers.held));
    let mut stripes: Vec<Stripe> =
        leased.map(|leased| stripe('=', Color::Magenta, leased, "leases")).into_iter().collect();
    let blocks = numbers.held - leased.unwrap_or(0);
    stripes.extend([
        stripe('#', Color::Blue, blocks, "blocks"),
        stripe(':', Color::Green, numbers.cached, "caches"),
        stripe('.', Color::DarkGray, numbers.free, "free"),
    ]);
    stripes
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        _ => format!("{:.1} ms", nanoseconds as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([1_500, 3_040_000].map(time), ["1.5 us", "3.0 ms"]);
    }
}
