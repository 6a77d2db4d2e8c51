//! The table of leases.

use glebe::lease::wire::Row;
use glebe::units::Bytes;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::Frame;

use super::super::lent::{LentNow, OF_LEASES};
use super::super::look::plain;
use super::super::pick::window;
use super::super::screen::{Focus, Screen};
use super::{faint, heading, in_view, marked};

/// Lines above the leases.
const ABOVE: usize = 3;

/// Returns the rows that the table of `count` leases wants.
pub fn rows(count: usize) -> usize {
    if count == 0 {
        ABOVE - 1
    } else {
        count + ABOVE
    }
}

pub fn leases(screen: &Screen, lent: &LentNow, leases: &[&Row], frame: &mut Frame, area: Rect) {
    let sums = OF_LEASES.iter().zip(lent.bytes).filter(|(_, bytes)| *bytes > 0);
    let sums: Vec<String> =
        sums.map(|((_, name), bytes)| format!("{} {name}", Bytes::new(bytes))).collect();
    let sums = if sums.is_empty() { "none".to_owned() } else { sums.join(", ") };
    let mut lines = vec![Line::default()];
    lines.push(Line::from(format!("leases at {}: {sums}", lent.path)).style(heading()));
    if !leases.is_empty() {
        lines
            .push(Line::from(format!("{:>9} {:>8} {:>8}  KIND       NAME", "SIZE", "USER", "PID")));
    }
    let fit = usize::from(area.height).saturating_sub(lines.len());
    // The last line tells of the others.
    let room = if leases.len() > fit { fit.saturating_sub(1) } else { leases.len() };
    let picked = screen.picked_lease();
    let shown = window(leases.len(), picked, room);
    for (nth, row) in shown.clone().zip(&leases[shown.clone()]) {
        let style = marked(screen, Focus::Leases, picked == Some(nth));
        lines.push(Line::from(text(row)).style(style));
    }
    if leases.len() > room {
        let of = |rows: &[&Row]| rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
        let rest = Bytes::new(of(&leases[..shown.start]).saturating_add(of(&leases[shown.end..])));
        let told = in_view("leases", &shown, leases.len(), rest);
        lines.push(Line::from(told).style(faint(screen)));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn text(row: &Row) -> String {
    let size = Bytes::new(row.bytes).to_string();
    let (pid, kind) = match (row.is_cache, row.flags.revocable) {
        (true, _) => ("-".to_owned(), "cache"),
        (false, true) => (row.pid.to_string(), "revocable"),
        (false, false) => (row.pid.to_string(), "lease"),
    };
    format!("{size:>9} {:>8} {pid:>8}  {kind:<9}  {}", row.uid, plain(row.name.as_str()))
}
