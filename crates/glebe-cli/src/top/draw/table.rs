//! The table of reserves.

use glebe::units::Bytes;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::Frame;

use super::super::pick::window;
use super::super::reserves::{bytes, Rates};
use super::super::screen::{Focus, Screen, WithRates};
use super::{faint, heading, in_view, marked};

/// Columns of each cell, and at least as many for the command. Lengths are at most as wide as
/// `1023.9 MiB`.
const WIDTHS: [u16; 9] = [7, 5, 10, 10, 10, 10, 7, 4, 7];
const COMMAND: usize = 1;
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

pub fn reserves(
    screen: &Screen,
    ordered: &[WithRates],
    picked: Option<usize>,
    frame: &mut Frame,
    area: Rect,
) {
    if ordered.is_empty() {
        let has_any = screen.look().is_some_and(|look| !look.reserves.is_empty());
        let text = if has_any { NONE_ACCEPTED } else { NONE };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let fit = usize::from(area.height.saturating_sub(1));
    // The last line tells of the others.
    let room = if ordered.len() > fit { fit.saturating_sub(1) } else { ordered.len() };
    let shown = window(ordered.len(), picked, room);
    let columns = columns(area.width);
    let head = HEAD.iter().enumerate().map(|(nth, name)| aligned(nth, (*name).to_owned()));
    let rows = shown.clone().map(|nth| {
        let style = marked(screen, Focus::Reserves, picked == Some(nth));
        Row::new(cells(&ordered[nth]).into_iter().take(columns)).style(style)
    });
    let table = Table::new(rows, WIDTHS[..columns].iter().enumerate().map(constraint));
    let table = table.header(Row::new(head.take(columns)).style(heading())).column_spacing(1);
    frame.render_widget(table, area);
    if fit > 0 && ordered.len() > room {
        let of = |rows: &[WithRates]| {
            rows.iter().map(|(seen, _)| seen.numbers.total).fold(0, u64::saturating_add)
        };
        let rest = of(&ordered[..shown.start]).saturating_add(of(&ordered[shown.end..]));
        let told = in_view("reserves", &shown, ordered.len(), bytes(rest));
        let line = Line::from(told).style(faint(screen));
        frame.render_widget(line, Rect { y: area.bottom() - 1, height: 1, ..area });
    }
}

/// Returns how many columns have room, from the left. A number without its first digits would be
/// another number.
fn columns(width: u16) -> usize {
    let fits = |count: &usize| {
        let spaces = count.saturating_sub(1) as u16;
        WIDTHS[..*count].iter().sum::<u16>() + spaces <= width
    };
    (0..=WIDTHS.len()).rev().find(fits).unwrap_or(0)
}

fn constraint((nth, width): (usize, &u16)) -> Constraint {
    if nth == COMMAND {
        Constraint::Fill(1)
    } else {
        Constraint::Length(*width)
    }
}

/// Numbers stand at the right.
fn aligned(nth: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if nth == COMMAND { line } else { line.right_aligned() })
}

fn cells((seen, rates): &WithRates) -> Vec<Cell<'static>> {
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
    texts.enumerate().map(|(nth, text)| aligned(nth, text)).collect()
}

/// Writes a number in at most 7 characters, if it is below 10^21.
fn short(number: f64) -> String {
    let units = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
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
        let all = [0.0, 9999.0, 12_345.0, 2.5e6, 7e9, u64::MAX as f64 * 10.0].map(short);
        assert_eq!(all, ["0", "9999", "12.3k", "2.5M", "7.0G", "184.5E"]);
    }
}
