//! [`all`] draws a [`Screen`].

mod bar;
mod detail;
mod leases;
mod places;
mod table;

use clap::ValueEnum;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::Frame;

use super::look::{plain, Look};
use super::screen::{Focus, Screen};
use detail::{DETAIL, TIMES};
use places::{places, Part, PARTS};

const HELP: &str = "
SIZE     length of the reserve
BLOCKS   memory in first-class blocks, with that of leases
CACHES   memory of caches and swap, which blocks may take at any time
FREE     memory that nobody uses
GIVEN/s  blocks given in a second
HIT%     gets of caches that hit since the last look; at first since the start
TAKEN/s  pages that left caches in a second, for blocks or for other pages

Yellow bars: the picked reserve's mean times to give a block, look by look.
The server of leases has = in its bar. Promises are in its caches and free.

q, ^C quit    s next order    p, space pause    +, - half, double the interval
up, down, page up, page down, home, end, k, j pick a row    Tab other table
/ show only rows with a text in command, PID or name    Esc show all rows
m map of physical memory (root)    ^L draw again    h, Esc back";

/// Returns the rows of a picture that leaves nothing out.
pub fn rows(screen: &Screen) -> u16 {
    let Some(look) = screen.look() else { return 1 };
    wants(screen, look, false).into_iter().fold(0, u16::saturating_add)
}

/// Returns the rows that each part wants.
fn wants(screen: &Screen, look: &Look, is_live: bool) -> [u16; PARTS] {
    let reserves = screen.ordered().len();
    let mut wants = [0; PARTS];
    wants[Part::Head as usize] = lines(1 + look.machine.lines().len());
    wants[Part::Reserves as usize] = lines(table::rows(reserves));
    if reserves > 0 {
        wants[Part::Detail as usize] = DETAIL;
        wants[Part::Times as usize] = if is_live { TIMES } else { 0 };
    }
    if look.lent.is_some() {
        wants[Part::Leases as usize] = lines(leases::rows(screen.leases().len()));
    }
    wants[Part::Notes as usize] = lines(look.notes.len());
    wants[Part::Keys as usize] = u16::from(is_live);
    wants
}

/// More lines than a terminal has rows are cut off.
fn lines(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX).min(10_000)
}

/// Draws what `--once` prints, or with `is_live` also keys and times of the last minutes.
pub fn all(screen: &Screen, is_live: bool, frame: &mut Frame) {
    let Some(look) = screen.look() else { return };
    let places = places(frame.area(), wants(screen, look, is_live), screen.focus());
    let at = |part: Part| places[part as usize];
    let mut text = vec![Line::from(title(screen, is_live)).style(heading())];
    text.extend(look.machine.lines().into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(text), at(Part::Head));
    let notes: Vec<Line> = look.notes.iter().map(|note| Line::from(note.as_str())).collect();
    frame.render_widget(Paragraph::new(notes), at(Part::Notes));
    frame.render_widget(Paragraph::new(keys(screen)).style(faint(screen)), at(Part::Keys));
    let page = if screen.has_help() { Some(HELP) } else { screen.map() };
    if let Some(page) = page {
        let rest = [Part::Detail, Part::Times, Part::Leases].map(at);
        let rest = rest.into_iter().fold(at(Part::Reserves), |all, place| all.union(place));
        return frame.render_widget(Paragraph::new(page), rest);
    }
    let ordered = screen.ordered();
    table::reserves(screen, &ordered, frame, at(Part::Reserves));
    if let Some((seen, _)) = ordered.iter().find(|(seen, _)| screen.is_picked(seen)) {
        detail::detail(screen, seen, is_live, frame, at(Part::Detail));
        detail::times(screen, seen, frame, at(Part::Times));
    }
    if let Some(lent) = &look.lent {
        leases::leases(screen, lent, &screen.leases(), frame, at(Part::Leases));
    }
}

fn title(screen: &Screen, is_live: bool) -> String {
    let order = screen.order().to_possible_value();
    let order = order.as_ref().map_or("", |value| value.get_name());
    let every = format!(", every {} s", screen.interval().as_secs_f64());
    let every = if is_live { &every } else { "" };
    let filter = match plain(screen.filter().text()) {
        text if text.is_empty() => text,
        text => format!("; filter {text:.32}"),
    };
    let paused = if screen.is_paused() { "; paused" } else { "" };
    format!("glebe top{every}; by {order}{filter}{paused}")
}

fn keys(screen: &Screen) -> String {
    if screen.is_typing() {
        let text = plain(screen.filter().text());
        return format!("filter: {text}_   Enter keep, Esc show all");
    }
    let table = match (screen.focus(), screen.look().is_some_and(|look| look.lent.is_some())) {
        (_, false) => "",
        (Focus::Reserves, true) => "  Tab leases",
        (Focus::Leases, true) => "  Tab reserves",
    };
    format!("q quit  h help  s sort  / filter{table}  up/down pick  p pause  m map")
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

/// Returns the style of a row, without colours: the picked row of the table in use stands out most.
fn marked(screen: &Screen, table: Focus, is_picked: bool) -> Style {
    let modifier = match (is_picked, screen.focus() == table) {
        (true, true) => Modifier::REVERSED,
        (true, false) => Modifier::BOLD,
        (false, _) => Modifier::empty(),
    };
    Style::new().add_modifier(modifier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_no_more_columns_than_usual_terminals() {
        assert!(HELP.lines().all(|line| line.len() <= 80), "{HELP}");
    }
}
