//! The table of reserves.

use glebe::units::Bytes;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::Frame;

use super::super::pick::window;
use super::super::reserves::{bytes, Rates};
use super::super::screen::{Focus, Screen, WithRates};
use super::{heading, marked};

/// Lengths are at most as wide as `1023.9 MiB`.
const WIDTHS: [Constraint; 9] = [
    Constraint::Length(7),
    Constraint::Fill(1),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(7),
    Constraint::Length(4),
    Constraint::Length(7),
];
const HEAD: [&str; 9] =
    ["PID", "COMMAND", "SIZE", "BLOCKS", "CACHES", "FREE", "GIVEN/s", "HIT%", "TAKEN/s"];
const NONE: &str = "\nNo reserve of yours serves statistics now: start `glebe serve`, or call\n\
                    serve_stats() in your program.";
const NONE_ACCEPTED: &str = "\nNo reserve matches the filter.";

/// Returns the rows that the table of `count` reserves wants.
pub fn rows(count: usize) -> usize {
    if count == 0 {
        NONE.lines().count()
    } else {
        count + 1
    }
}

pub fn reserves(screen: &Screen, ordered: &[WithRates], frame: &mut Frame, area: Rect) {
    if ordered.is_empty() {
        let has_any = screen.look().is_some_and(|look| !look.reserves.is_empty());
        let text = if has_any { NONE_ACCEPTED } else { NONE };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let head = HEAD.iter().enumerate().map(|(nth, name)| aligned(nth, (*name).to_owned()));
    let picked = ordered.iter().position(|(seen, _)| screen.is_picked(seen));
    let shown = window(ordered.len(), picked, usize::from(area.height.saturating_sub(1)));
    let rows = ordered[shown].iter().map(|with_rates| {
        let style = marked(screen, Focus::Reserves, screen.is_picked(with_rates.0));
        row(with_rates).style(style)
    });
    let table = Table::new(rows, WIDTHS).header(Row::new(head).style(heading())).column_spacing(1);
    frame.render_widget(table, area);
}

/// Numbers stand at the right.
fn aligned(nth: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if nth == 1 { line } else { line.right_aligned() })
}

fn row((seen, rates): &WithRates) -> Row<'static> {
    let numbers = &seen.numbers;
    let lengths = [numbers.total, numbers.held, numbers.cached, numbers.free].map(bytes);
    let hits = rates.map_or_else(|| numbers.hit_ratio(), |rates| rates.hits);
    let of = |rate: fn(&Rates) -> f64| rates.as_ref().map_or("-".to_owned(), |it| short(rate(it)));
    let first = [seen.pid.to_string(), seen.command.clone()].into_iter();
    let texts = first.chain(lengths.map(|len: Bytes| len.to_string())).chain([
        of(|it| it.given),
        hits.map_or_else(|| "-".to_owned(), |hits| format!("{hits:.0}")),
        of(|it| it.taken),
    ]);
    Row::new(texts.enumerate().map(|(nth, text)| aligned(nth, text)).collect::<Vec<_>>())
}

/// Writes a number in at most 7 characters, if it is below 10^12.
fn short(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e4, "k")];
    let unit = units.iter().find(|(least, _)| number >= *least);
    unit.map_or_else(
        || format!("{number:.0}"),
        |(least, name)| format!("{:.1}{name}", number / if *name == "k" { 1e3 } else { *least }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 9999.0, 12_345.0, 2.5e6, 7e9].map(short);
        assert_eq!(all, ["0", "9999", "12.3k", "2.5M", "7.0G"]);
    }
}
