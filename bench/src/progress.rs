//! [`Progress`]: how far a run has come, on stderr.
//!
//! On a terminal one line, redrawn in place at most [`REDRAWS_PER_SECOND`] times; elsewhere a plain
//! line every [`PLAIN_EVERY`] and one at the end. Stdout is never written; whoever prints there to
//! the same terminal calls [`Progress::clear`] first. Unit: whatever the caller counts.
//! Cost: one clock reading an update.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::clock;
use crate::interrupt;

/// Redraws of the line on a terminal.
pub const REDRAWS_PER_SECOND: u32 = 10;

/// Time between lines where stderr is no terminal.
pub const PLAIN_EVERY: Duration = Duration::from_secs(10);

const BAR_CELLS: u64 = 24;
const ERASE: &str = "\r\x1b[K";

/// Progress of one task, shown as it goes; what is left of the line is ended when dropped.
#[derive(Debug)]
pub struct Progress {
    view: View,
    start: Duration,
}

/// Decides what to write and when; time comes from outside.
#[derive(Debug)]
struct View {
    label: String,
    total: u64,
    terminal: bool,
    done: u64,
    shown_at: Option<Duration>,
    line_open: bool,
    finished: bool,
}

impl Progress {
    /// Begins a task of `total` steps; shows nothing before the first update.
    #[must_use]
    pub fn new(label: &str, total: u64) -> Self {
        let terminal = io::stderr().is_terminal();
        Self { view: View::new(label, total, terminal), start: clock::wall() }
    }

    /// Says that `done` steps are behind us. Unwinds if the run was told to end
    /// ([`interrupt`]).
    pub fn update(&mut self, done: u64) {
        interrupt::check();
        let text = self.view.update(done, clock::wall().saturating_sub(self.start));
        show(text);
    }

    /// Takes the line off the terminal until the next update, so that something else can be
    /// printed.
    pub fn clear(&mut self) {
        show(self.view.clear());
    }

    /// Shows the last state and ends the line.
    pub fn finish(mut self) {
        let text = self.view.finish(clock::wall().saturating_sub(self.start));
        show(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        show(self.view.end_line());
    }
}

/// One write, so that lines of other threads do not fall between; a closed stderr is no failure.
fn show(text: Option<String>) {
    if let Some(text) = text {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

impl View {
    fn new(label: &str, total: u64, terminal: bool) -> Self {
        // A control character in a name must not move the cursor.
        let label = label.chars().filter(|c| !c.is_control()).collect();
        Self { label, total, terminal, done: 0, shown_at: None, line_open: false, finished: false }
    }

    fn update(&mut self, done: u64, now: Duration) -> Option<String> {
        self.done = done.min(self.total);
        let due = match (self.shown_at, self.terminal) {
            (None, true) => true,
            (None, false) => now >= PLAIN_EVERY,
            (Some(at), true) => now >= at + Duration::from_secs(1) / REDRAWS_PER_SECOND,
            (Some(at), false) => now >= at + PLAIN_EVERY,
        };
        due.then(|| self.draw(now))
    }

    fn finish(&mut self, now: Duration) -> Option<String> {
        self.finished = true;
        let mut text = self.draw(now);
        if let Some(end) = self.end_line() {
            text.push_str(&end);
        }
        Some(text)
    }

    fn clear(&mut self) -> Option<String> {
        self.shown_at = self.shown_at.filter(|_| !self.terminal);
        std::mem::take(&mut self.line_open).then(|| ERASE.into())
    }

    fn end_line(&mut self) -> Option<String> {
        std::mem::take(&mut self.line_open).then(|| "\n".into())
    }

    fn draw(&mut self, now: Duration) -> String {
        self.shown_at = Some(now);
        let percent = portion(self.done, self.total, 100);
        let Self { label, done, total, .. } = self;
        let secs = now.as_secs();
        if !self.terminal {
            return format!("{label}: {done} of {total} ({percent} %), {secs} s\n");
        }
        self.line_open = true;
        let full = portion(self.done, self.total, BAR_CELLS) as usize;
        let bar = "#".repeat(full) + &"-".repeat(BAR_CELLS as usize - full);
        let left = match self.done {
            0 => String::new(),
            _ if self.finished => String::new(),
            done => {
                let rest = now.as_secs_f64() * (self.total - done) as f64 / done as f64;
                format!(", {rest:.0} s left")
            }
        };
        format!("{ERASE}{label} [{bar}] {percent:>3} %  {secs} s{left}")
    }
}

/// `done / total` in parts of `whole`, rounded down; nothing to do is all done.
fn portion(done: u64, total: u64, whole: u64) -> u64 {
    match total {
        0 => whole,
        _ => (u128::from(done) * u128::from(whole) / u128::from(total)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_terminal_gets_one_line_redrawn() {
        let mut view = View::new("fill\n\x1b[2J", 200, true);
        let first = view.update(0, MS).unwrap();
        assert!(first.starts_with("\r\x1b[Kfill[2J [------------------------]   0 %"), "{first:?}");
        assert_eq!(view.update(1, MS * 100), None);
        let half = view.update(100, MS * 4_101).unwrap();
        let bar = "[############------------]  50 %  4 s, 4 s left";
        assert!(half.ends_with(bar), "{half:?}");
        assert_eq!(half.matches(['\n', '\r']).count(), 1);

        assert_eq!(view.clear().as_deref(), Some(ERASE));
        assert_eq!(view.clear(), None);
        assert!(view.update(101, MS * 4_102).is_some(), "drawn again at once after a clear");

        let last = view.finish(MS * 5_000).unwrap();
        assert!(last.ends_with(" s\n"), "{last:?}");
        assert_eq!(view.end_line(), None);
    }

    #[test]
    fn elsewhere_plain_lines_now_and_then() {
        let mut view = View::new("fill", 1_000, false);
        let lines: Vec<_> =
            (0..=1_000).filter_map(|i| view.update(i, MS * 25 * i as u32)).collect();
        assert_eq!(lines, ["fill: 400 of 1000 (40 %), 10 s\n", "fill: 800 of 1000 (80 %), 20 s\n"]);
        assert_eq!(view.clear(), None);
        let last = view.finish(MS * 25_000).unwrap();
        assert_eq!(last, "fill: 1000 of 1000 (100 %), 25 s\n");
    }

    #[test]
    fn numbers_at_the_edges() {
        assert_eq!(portion(0, 0, 100), 100);
        assert_eq!(portion(u64::MAX, u64::MAX, 100), 100);
        let mut view = View::new("", 3, true);
        assert!(view.update(u64::MAX, MS).unwrap().contains("100 %"));
        let mut view = View::new("", 0, true);
        assert!(view.update(5, MS).unwrap().contains("100 %"));
    }
}
