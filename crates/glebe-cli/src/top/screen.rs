//! [`Screen`] keeps what the user chose, and what the last looks saw.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::look::{Look, Seen};
use super::reserves::Rates;
use crate::contig;

/// Mean times to give a block that are kept for each reserve.
const WAITS: usize = 240;
/// Nanoseconds: a stranger's process may give any number.
const WAIT_MAX: u64 = 1 << 40;
const FASTEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(3600);
/// The map reads a word for each page of the machine.
const MAP_EVERY: Duration = Duration::from_secs(10);

/// Order of the reserves. The first has most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By length
    #[default]
    Size,
    /// By memory in first-class blocks
    Blocks,
    /// By memory of caches
    Caches,
    /// By blocks given in a second
    Given,
    /// By process number, lowest first
    Pid,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Size => Self::Blocks,
            Self::Blocks => Self::Caches,
            Self::Caches => Self::Given,
            Self::Given => Self::Pid,
            Self::Pid => Self::Size,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    End,
    Up,
    Down,
    Sort,
    Pause,
    Faster,
    Slower,
    Map,
    Help,
    /// Draws all cells again.
    Clear,
    /// The terminal has another size, or the key has no meaning.
    Redraw,
}

impl From<KeyEvent> for Key {
    fn from(key: KeyEvent) -> Self {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Self::End,
            KeyCode::Char('l') if key.modifiers.contains(KeyModifiers::CONTROL) => Self::Clear,
            KeyCode::Char('q') => Self::End,
            KeyCode::Up | KeyCode::Char('k') => Self::Up,
            KeyCode::Down | KeyCode::Char('j') => Self::Down,
            KeyCode::Char('s') => Self::Sort,
            KeyCode::Char('p' | ' ') => Self::Pause,
            KeyCode::Char('+') => Self::Faster,
            KeyCode::Char('-') => Self::Slower,
            KeyCode::Char('m') => Self::Map,
            KeyCode::Char('h' | '?') => Self::Help,
            _ => Self::Redraw,
        }
    }
}

pub struct Screen {
    interval: Duration,
    order: Order,
    has_colors: bool,
    is_paused: bool,
    has_help: bool,
    picked: Option<PathBuf>,
    before: Option<Look>,
    now: Option<Look>,
    waits: HashMap<PathBuf, VecDeque<u64>>,
    map: Option<(Instant, String)>,
}

impl Screen {
    pub fn new(interval: Duration, order: Order, has_colors: bool) -> Self {
        Self {
            interval,
            order,
            has_colors,
            is_paused: false,
            has_help: false,
            picked: None,
            before: None,
            now: None,
            waits: HashMap::new(),
            map: None,
        }
    }

    pub fn add(&mut self, look: Look) {
        self.before = self.now.replace(look);
        let ordered = self.ordered();
        let picked = self.picked.clone().filter(|of| ordered.iter().any(|(it, _)| it.path == *of));
        let picked = picked.or_else(|| ordered.first().map(|(seen, _)| seen.path.clone()));
        let wait = |rates: &Option<Rates>| rates.and_then(|it| it.wait).unwrap_or(0).min(WAIT_MAX);
        let waits: Vec<(PathBuf, u64)> =
            ordered.iter().map(|(seen, rates)| (seen.path.clone(), wait(rates))).collect();
        self.picked = picked;
        self.waits.retain(|of, _| waits.iter().any(|(path, _)| path == of));
        for (of, wait) in waits {
            let all = self.waits.entry(of).or_default();
            all.push_back(wait);
            all.drain(..all.len().saturating_sub(WAITS));
        }
        if self.map.as_ref().is_some_and(|(at, _)| at.elapsed() >= MAP_EVERY) {
            self.map = Some(map());
        }
    }

    pub fn press(&mut self, key: Key) {
        match key {
            Key::Up => self.pick(-1),
            Key::Down => self.pick(1),
            Key::Sort => self.order = self.order.next(),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Faster => self.interval = (self.interval / 2).max(FASTEST),
            Key::Slower => self.interval = (self.interval * 2).min(SLOWEST),
            Key::Map => self.map = if self.map.is_some() { None } else { Some(map()) },
            Key::Help => self.has_help = !self.has_help,
            Key::End | Key::Clear | Key::Redraw => {}
        }
    }

    fn pick(&mut self, by: isize) {
        let ordered = self.ordered();
        let at = ordered.iter().position(|(seen, _)| self.is_picked(seen));
        let last = ordered.len().saturating_sub(1);
        let at = at.unwrap_or(0).saturating_add_signed(by).min(last);
        self.picked = ordered.get(at).map(|(seen, _)| seen.path.clone());
    }

    /// Returns the reserves in the user's order, with rates if the look before saw them.
    pub fn ordered(&self) -> Vec<(&Seen, Option<Rates>)> {
        let Some(now) = &self.now else { return Vec::new() };
        let rates = |seen: &Seen| {
            let before = self.before.as_ref()?;
            let then = before.reserve(&seen.path)?;
            let time = seen.at.saturating_duration_since(then.at);
            Some(Rates::between(&then.numbers, &seen.numbers, time))
        };
        let mut all: Vec<_> = now.reserves.iter().map(|seen| (seen, rates(seen))).collect();
        all.sort_by_key(|(seen, _)| (seen.pid, seen.number));
        match self.order {
            Order::Pid => {}
            Order::Size => all.sort_by_key(|(seen, _)| Reverse(seen.numbers.total)),
            Order::Blocks => all.sort_by_key(|(seen, _)| Reverse(seen.numbers.held)),
            Order::Caches => all.sort_by_key(|(seen, _)| Reverse(seen.numbers.cached)),
            Order::Given => all.sort_by(|(_, one), (_, other)| {
                let given = |of: &Option<Rates>| of.map_or(0.0, |it| it.given);
                given(other).total_cmp(&given(one))
            }),
        }
        all
    }

    pub fn look(&self) -> Option<&Look> {
        self.now.as_ref()
    }

    pub fn is_picked(&self, seen: &Seen) -> bool {
        self.picked.as_ref() == Some(&seen.path)
    }

    /// Returns the mean times to give a block of the last looks, the latest last.
    pub fn waits(&self, seen: &Seen) -> Vec<u64> {
        self.waits.get(&seen.path).map_or_else(Vec::new, |all| all.iter().copied().collect())
    }

    pub fn map(&self) -> Option<&str> {
        self.map.as_ref().map(|(_, text)| text.as_str())
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn order(&self) -> Order {
        self.order
    }

    pub fn has_colors(&self) -> bool {
        self.has_colors
    }

    pub fn has_help(&self) -> bool {
        self.has_help
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }
}

fn map() -> (Instant, String) {
    let text = contig::map_text().unwrap_or_else(|error| format!("no map: {error}"));
    (Instant::now(), text)
}
