//! [`all`] draws a [`Screen`].

use clap::ValueEnum;
use glebe::units::Bytes;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};
use ratatui::Frame;

use super::look::{Look, Seen, OF_LEASES};
use super::reserves::{bytes, Rates};
use super::screen::Screen;

const KEYS: &str = "q quit  h help  s sort  up/down pick  p pause  +/- faster, slower  m map";
const HELP: &str = "
SIZE     length of the reserve
BLOCKS   memory in first-class blocks, with that of leases
CACHES   memory of caches and swap, which blocks may take at any time
FREE     memory that nobody uses
GIVEN/s  blocks given in a second
HIT%     gets of caches that found their page, since the last look; at first since the start
TAKEN/s  pages that left caches in a second, for blocks or for other pages

Yellow bars: the mean time to give a block between two looks of the picked reserve.
Keys: q or ^C quit, s next order, up and down or k and j pick a reserve, p or space pause,
+ and - half and double the interval, m map of physical memory (root), ^L draw again, h back.";
/// Lines about the picked reserve, and lines of bars with its times.
const DETAIL: u16 = 4;
const TIMES: u16 = 2;
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
/// Lines of leases that stay visible in a small terminal.
const LEASES: u16 = 6;

/// Returns the rows of a picture that leaves nothing out.
pub fn rows(screen: &Screen) -> u16 {
    let Some(look) = screen.look() else { return 1 };
    let leases = look.lent.as_ref().map_or(0, |lent| lent.rows.len() + 3);
    let reserves = match look.reserves.len() {
        0 => 3,
        some => some + 1 + usize::from(DETAIL),
    };
    u16::try_from(3 + reserves + leases + look.notes.len()).unwrap_or(u16::MAX)
}

/// Draws what `--once` prints, or with `is_live` also keys and times of the last minutes.
pub fn all(screen: &Screen, is_live: bool, frame: &mut Frame) {
    let Some(look) = screen.look() else { return };
    let full = frame.area();
    let has_reserves = !look.reserves.is_empty();
    let leases = look.lent.as_ref().map_or(0, |lent| lines(lent.rows.len()) + 3);
    // A large terminal shows all leases.
    let [keys, times] = if is_live { [1, TIMES] } else { [0, 0] };
    let detail = if has_reserves { DETAIL + times } else { 0 };
    let table = if has_reserves { 1 + lines(look.reserves.len()).min(3) } else { 3 };
    let notes = lines(look.notes.len());
    let others = 3 + table + detail + notes + keys;
    let leases = leases.min(full.height.saturating_sub(others).max(LEASES));
    let parts = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(2),
        Constraint::Length(detail),
        Constraint::Length(leases),
        Constraint::Length(notes),
        Constraint::Length(keys),
    ])
    .split(full);
    head(screen, look, is_live, frame, parts[0]);
    let notes: Vec<Line> = look.notes.iter().map(|note| Line::from(note.as_str())).collect();
    frame.render_widget(Paragraph::new(notes), parts[4]);
    frame.render_widget(Paragraph::new(KEYS).style(faint(screen)), parts[5]);
    let page = if screen.has_help() { Some(HELP) } else { screen.map() };
    if let Some(page) = page {
        let rest = parts[1].union(parts[2]).union(parts[3]);
        return frame.render_widget(Paragraph::new(page), rest);
    }
    reserves(screen, frame, parts[1]);
    if let Some((seen, _)) = screen.ordered().iter().find(|(seen, _)| screen.is_picked(seen)) {
        picked(screen, seen, is_live, frame, parts[2]);
    }
    lent(screen, look, frame, parts[3]);
}

/// More lines than a terminal has rows are cut off.
fn lines(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX).min(10_000)
}

fn colored(screen: &Screen, color: Color) -> Style {
    match screen.has_colors() {
        true => Style::new().fg(color),
        false => Style::new(),
    }
}

fn faint(screen: &Screen) -> Style {
    colored(screen, Color::DarkGray)
}

fn heading() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn head(screen: &Screen, look: &Look, is_live: bool, frame: &mut Frame, area: Rect) {
    let order = screen.order().to_possible_value();
    let order = order.as_ref().map_or("", |value| value.get_name());
    let every = format!("every {} s, ", screen.interval().as_secs_f64());
    let every = if is_live { &every } else { "" };
    let paused = if screen.is_paused() { ", paused" } else { "" };
    let [pressure, memory, pools] = look.machine.lines();
    let title = format!("glebe top, {every}{pressure}; by {order}{paused}");
    let lines = [Line::from(title).style(heading()), Line::from(memory), Line::from(pools)];
    frame.render_widget(Paragraph::new(lines.to_vec()), area);
}

fn reserves(screen: &Screen, frame: &mut Frame, area: Rect) {
    let ordered = screen.ordered();
    if ordered.is_empty() {
        let text = "\nNo reserve of yours serves statistics now: start `glebe serve`, or call\n\
                    serve_stats() in your program.";
        return frame.render_widget(Paragraph::new(text), area);
    }
    let head = HEAD.iter().enumerate().map(|(nth, name)| aligned(nth, (*name).to_owned()));
    let rows = ordered.iter().map(|(seen, rates)| row(seen, rates.as_ref()));
    let table = Table::new(rows, WIDTHS)
        .header(Row::new(head).style(heading()))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let picked = ordered.iter().position(|(seen, _)| screen.is_picked(seen));
    let mut state = TableState::new().with_selected(picked);
    frame.render_stateful_widget(table, area, &mut state);
}

/// Numbers stand at the right.
fn aligned(nth: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if nth == 1 { line } else { line.right_aligned() })
}

fn row(seen: &Seen, rates: Option<&Rates>) -> Row<'static> {
    let numbers = &seen.numbers;
    let lengths = [numbers.total, numbers.held, numbers.cached, numbers.free];
    let lengths = lengths.map(|pages| bytes(pages).to_string());
    let hits = rates.map_or_else(|| numbers.hit_ratio(), |rates| rates.hits);
    let of = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), short);
    let texts = [seen.pid.to_string(), seen.command.clone()].into_iter().chain(lengths).chain([
        of(rates.map(|it| it.given)),
        hits.map_or_else(|| "-".to_owned(), |hits| format!("{hits:.0}")),
        of(rates.map(|it| it.taken)),
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

fn picked(screen: &Screen, seen: &Seen, is_live: bool, frame: &mut Frame, area: Rect) {
    let numbers = &seen.numbers;
    let parts = Layout::vertical([Constraint::Length(4), Constraint::Fill(1)]).split(area);
    let shares = [
        ('#', Color::Blue, numbers.held, "blocks"),
        (':', Color::Green, numbers.cached, "caches"),
        ('.', Color::DarkGray, numbers.free, "free"),
    ];
    let width = usize::from(area.width.saturating_sub(2));
    let cells = filled(width, shares.map(|(_, _, pages, _)| pages));
    let spans = shares.iter().zip(cells).map(|((sign, color, ..), count)| {
        Span::styled(sign.to_string().repeat(count), colored(screen, *color))
    });
    let bar = ["[".into()].into_iter().chain(spans).chain(["]".into()]);
    let legend = shares.map(|(sign, _, pages, name)| format!("{sign} {name} {}", bytes(pages)));
    let [p50, p99, max] = [numbers.p50, numbers.p99, numbers.max].map(time);
    let given = format!(
        "{} blocks given, half within {p50}, 99 % within {p99}, all within {max}",
        numbers.given
    );
    let title = format!("process {}, reserve {}: {}", seen.pid, seen.number, seen.command);
    let waits = screen.waits(seen);
    let shown = &waits[waits.len().saturating_sub(usize::from(area.width))..];
    let longest = shown.iter().max().filter(|longest| **longest > 0 && is_live);
    let times =
        longest.map_or_else(String::new, |it| format!("   bars: means up to {}", time(*it)));
    let lines = vec![
        Line::from(title).style(heading()),
        Line::from(bar.collect::<Vec<_>>()),
        Line::from(format!(" {}{times}", legend.join("   "))),
        Line::from(given),
    ];
    frame.render_widget(Paragraph::new(lines), parts[0]);
    let line = Sparkline::default().data(shown).style(colored(screen, Color::Yellow));
    frame.render_widget(line, parts[1]);
}

/// Divides `width` cells by pages. Any pages have at least one cell, while there are cells.
fn filled(width: usize, pages: [u64; 3]) -> [usize; 3] {
    let sum: u128 = pages.iter().map(|pages| u128::from(*pages)).sum();
    let share = |pages: u64| {
        let share = (u128::from(pages) * width as u128).checked_div(sum).unwrap_or(0) as usize;
        share.max(usize::from(pages > 0))
    };
    let mut cells = pages.map(share);
    let most = (0..3).max_by_key(|nth| pages[*nth]).unwrap_or(0);
    let others: usize = (0..3).filter(|nth| *nth != most).map(|nth| cells[nth]).sum();
    cells[most] = width.saturating_sub(others);
    let mut left = width;
    for cell in &mut cells {
        *cell = left.min(*cell);
        left -= *cell;
    }
    cells
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        _ => format!("{:.1} ms", nanoseconds as f64 / 1e6),
    }
}

fn lent(screen: &Screen, look: &Look, frame: &mut Frame, area: Rect) {
    let Some(lent) = &look.lent else { return };
    let sums = OF_LEASES.iter().zip(lent.bytes).filter(|(_, bytes)| *bytes > 0);
    let sums: Vec<String> =
        sums.map(|((_, name), bytes)| format!("{} {name}", Bytes::new(bytes))).collect();
    let sums = if sums.is_empty() { "none".to_owned() } else { sums.join(", ") };
    let mut rows: Vec<_> = lent.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let mut lines = vec![Line::default()];
    lines.push(Line::from(format!("leases at {}: {sums}", lent.path)).style(heading()));
    if !rows.is_empty() {
        lines
            .push(Line::from(format!("{:>9} {:>8} {:>8}  KIND       NAME", "SIZE", "USER", "PID")));
    }
    let fit = usize::from(area.height).saturating_sub(lines.len());
    // The last line says how many more there are.
    let shown = if rows.len() > fit { fit.saturating_sub(1) } else { rows.len() };
    for row in &rows[..shown] {
        let size = Bytes::new(row.bytes).to_string();
        let (pid, kind) = match (row.is_cache, row.flags.revocable) {
            (true, _) => ("-".to_owned(), "cache"),
            (false, true) => (row.pid.to_string(), "revocable"),
            (false, false) => (row.pid.to_string(), "lease"),
        };
        let name = row.name.as_str();
        lines.push(Line::from(format!("{size:>9} {:>8} {pid:>8}  {kind:<9}  {name}", row.uid)));
    }
    if rows.len() > shown {
        let rest: u64 = rows[shown..].iter().map(|row| row.bytes).sum();
        let (count, rest) = (rows.len() - shown, Bytes::new(rest));
        lines.push(Line::from(format!("and {count} more, {rest}")).style(faint(screen)));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_and_shows_what_is_there() {
        for (width, pages) in [(10, [1, 1, 998]), (10, [0, 0, 0]), (1, [5, 5, 5]), (0, [1, 1, 1])] {
            let cells = filled(width, pages);
            assert_eq!(cells.iter().sum::<usize>(), width, "{pages:?}");
        }
        assert_eq!(filled(10, [1, 1, 998]), [1, 1, 8]);
        assert_eq!(filled(10, [999, 1, 1]), [8, 1, 1]);
        assert_eq!(filled(11, [5, 5, 0]), [5, 6, 0]);
        assert_eq!(filled(10, [u64::MAX, u64::MAX, 0]), [5, 5, 0]);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 9999.0, 12_345.0, 2.5e6, 7e9].map(short);
        assert_eq!(all, ["0", "9999", "12.3k", "2.5M", "7.0G"]);
        assert_eq!([1_500, 25_000_000].map(time), ["1.5 us", "25.0 ms"]);
    }
}
