//! [`Page`] is text in place of the picture: the help, or the map of physical memory. The keys that
//! move scroll it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::pick::{stepped, Step};

/// The map reads a word for each page of the machine.
const MAP_EVERY: Duration = Duration::from_secs(10);
const NO_MAP_YET: &str = "\nThe map comes when every page of the machine is read.";

const HELP: &str = "
SIZE     length of the reserve
BLOCKS   memory in first-class blocks, with that of leases
CACHES   memory of caches and swap, which blocks may take at any time
FREE     memory that nobody uses
GIVEN/s  blocks given in a second
HIT%     gets of caches that hit since the last look; at first since the start
TAKEN/s  pages that left caches in a second, for blocks or for other pages

Yellow bars: the picked reserve's mean times to give a block, one bar per look.
`=` is leased memory, shown only if the server opened its socket itself. Under a
systemd socket unit leases count as `#`. Leases that an earlier server left are
in `=` too, but in no reserve. Promised memory counts as caches or free.
Only the map knows free runs that are longer than one huge page.

q, ^C quit    s next order    p, space pause    +, - half, double the interval
up, down, page up, page down, home, end, k, j pick a row    Tab other table
/ show only rows with a text in command, PID or name    Esc show all rows
m map of physical memory (root)    ^L draw again    h, Esc back";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Help,
    Map,
}

pub struct Page {
    subject: Subject,
    text: String,
    /// When the text came; `None` if it has not.
    at: Option<Instant>,
    /// The first line in view. A drawing knows the last possible one.
    first: Cell<usize>,
}

impl Page {
    pub fn new(subject: Subject) -> Self {
        let text = match subject {
            Subject::Help => HELP,
            Subject::Map => NO_MAP_YET,
        };
        Self { subject, text: text.to_owned(), at: None, first: Cell::new(0) }
    }

    pub fn is(&self, subject: Subject) -> bool {
        self.subject == subject
    }

    /// Returns true if this is a map that has not come yet, or one that is old.
    pub fn wants_map(&self) -> bool {
        self.is(Subject::Map) && self.at.is_none_or(|at| at.elapsed() >= MAP_EVERY)
    }

    /// Has no map yet.
    pub fn is_empty(&self) -> bool {
        self.is(Subject::Map) && self.at.is_none()
    }

    pub fn set_map(&mut self, text: String) {
        if self.is(Subject::Map) {
            (self.text, self.at) = (text, Some(Instant::now()));
        }
    }

    pub fn step(&mut self, step: Step) {
        let first = stepped(self.first.get(), self.text.lines().count(), step);
        self.first.set(first);
    }

    /// Returns the lines in view. The last screen is full.
    pub fn shown(&self, room: usize) -> Vec<&str> {
        let most = self.text.lines().count().saturating_sub(room);
        self.first.set(self.first.get().min(most));
        self.text.lines().skip(self.first.get()).take(room).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_no_more_columns_than_usual_terminals() {
        assert!(HELP.lines().all(|line| line.len() <= 80), "{HELP}");
    }

    #[test]
    fn a_page_scrolls_to_its_last_line_and_back_at_once() {
        let mut page = Page::new(Subject::Map);
        page.set_map((0..30).map(|nth| format!("{nth}\n")).collect());
        assert_eq!(page.shown(3), ["0", "1", "2"]);
        page.step(Step::Up);
        assert_eq!(page.shown(3), ["0", "1", "2"]);
        page.step(Step::PageDown);
        assert_eq!(page.shown(2), ["10", "11"]);
        for _ in 0..9 {
            page.step(Step::PageDown);
            page.shown(3);
        }
        assert_eq!(page.shown(3), ["27", "28", "29"]);
        page.step(Step::Up);
        assert_eq!(page.shown(3), ["26", "27", "28"]);
        page.step(Step::Last);
        assert_eq!(page.shown(1), ["29"]);
        assert_eq!(page.shown(40).len(), 30);
        assert_eq!(page.shown(0), [""; 0]);
    }

    #[test]
    fn a_map_is_wanted_until_it_comes() {
        let mut page = Page::new(Subject::Map);
        assert!(page.wants_map() && page.is_empty());
        page.set_map("map".to_owned());
        assert!(!page.wants_map() && !page.is_empty());
        let mut help = Page::new(Subject::Help);
        help.set_map("map".to_owned());
        assert!(!help.wants_map() && help.shown(99).len() > 9);
    }
}
