//! [`all`] draws a [`Screen`].

mod bar;
mod detail;
mod leases;
mod places;
mod table;

use std::ops::Range;

use clap::ValueEnum;
use glebe::units::Bytes;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::Frame;

use super::look::{plain, Look};
use super::screen::{Focus, Screen};
use detail::{DETAIL, TIMES};
use places::{page_places, places, Part, PARTS};

/// Returns the rows of a picture that leaves nothing out.
pub fn rows(screen: &Screen) -> u16 {
    let Some(look) = screen.look() else { return 1 };
    wants(screen, look, false).into_iter().fold(0, u16::saturating_add)
}

/// Returns the rows that each part wants.
fn wants(screen: &Screen, look: &Look, is_live: bool) -> [u16; PARTS] {
    let (reserves, leases) = (screen.ordered().len(), screen.leases().len());
    let mut wants = [0; PARTS];
    wants[Part::Head as usize] = lines(1 + look.machine.lines().len());
    wants[Part::Reserves as usize] = lines(table::rows(reserves));
    if reserves > 0 {
        wants[Part::Detail as usize] = DETAIL;
        wants[Part::Times as usize] = if is_live { TIMES } else { 0 };
    }
    if look.lent.is_some() {
        wants[Part::Leases as usize] = lines(leases::rows(leases));
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
    let title = Line::from(title(screen, is_live)).style(heading());
    let keys = Paragraph::new(keys(screen)).style(faint(screen));
    if let Some(page) = screen.page() {
        let [top, middle, bottom] = page_places(frame.area());
        frame.render_widget(Paragraph::new(title), top);
        let lines: Vec<Line> =
            page.shown(middle.height.into()).into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), middle);
        return frame.render_widget(keys, bottom);
    }
    let places = places(frame.area(), wants(screen, look, is_live), screen.focus());
    let at = |part: Part| places[part as usize];
    let head = [title].into_iter().chain(look.machine.lines().into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(head.collect::<Vec<_>>()), at(Part::Head));
    let notes: Vec<Line> = look.notes.iter().map(|note| Line::from(note.as_str())).collect();
    frame.render_widget(Paragraph::new(notes), at(Part::Notes));
    frame.render_widget(keys, at(Part::Keys));
    let (ordered, picked) = (screen.ordered(), screen.picked());
    table::reserves(screen, &ordered, picked, frame, at(Part::Reserves));
    if let Some((seen, _)) = picked.map(|nth| ordered[nth]) {
        let has_bars = at(Part::Times).height > 0;
        detail::detail(screen, seen, has_bars, frame, at(Part::Detail));
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
    let age = match screen.age() {
        Some(seconds) if is_live => format!("; {seconds} s old"),
        _ => String::new(),
    };
    format!("glebe top{every}; by {order}{filter}{paused}{age}")
}

fn keys(screen: &Screen) -> String {
    if screen.is_typing() {
        let text = plain(screen.filter().text());
        return format!("filter: {text}_   Enter keep, Esc show all");
    }
    if screen.page().is_some() {
        return "up/down scroll  Esc back  q quit  h help  m map".to_owned();
    }
    let table = match (screen.focus(), screen.look().is_some_and(|look| look.lent.is_some())) {
        (_, false) => "",
        (Focus::Reserves, true) => "  Tab leases",
        (Focus::Leases, true) => "  Tab reserves",
    };
    format!("q quit  h help  s sort  / filter{table}  up/down pick  p pause  m map")
}

/// Says which rows of a table are in view.
fn in_view(what: &str, shown: &Range<usize>, count: usize, others: Bytes) -> String {
    match shown.is_empty() {
        true => format!("{count} {what}, {others}"),
        false => {
            let (first, last) = (shown.start + 1, shown.end);
            format!("{what} {first} to {last} of {count}; the others have {others}")
        }
    }
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
