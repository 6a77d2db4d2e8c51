//! [`Screen`] keeps what the user chose, and what the last looks saw.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glebe::lease::wire::Row;

use super::filter::Filter;
use super::key::Key;
use super::look::{Look, Seen};
use super::pick::{Pick, Step};
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

/// The table that gets the keys that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    Reserves,
    Leases,
}

pub type WithRates<'a> = (&'a Seen, Option<Rates>);

pub struct Screen {
    interval: Duration,
    order: Order,
    has_colors: bool,
    is_paused: bool,
    has_help: bool,
    filter: Filter,
    focus: Focus,
    reserve: Pick<PathBuf>,
    lease: Pick<u64>,
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
            filter: Filter::default(),
            focus: Focus::Reserves,
            reserve: Pick::none(),
            lease: Pick::none(),
            before: None,
            now: None,
            waits: HashMap::new(),
            map: None,
        }
    }

    /// Shows only rows that contain `text`.
    pub fn filtered(self, text: &str) -> Self {
        Self { filter: Filter::new(text.to_owned()), ..self }
    }

    pub fn add(&mut self, look: Look) {
        self.before = self.now.replace(look);
        self.settle();
        let wait = |rates: &Option<Rates>| rates.and_then(|it| it.wait).unwrap_or(0).min(WAIT_MAX);
        let all = self.all().into_iter();
        let waits: Vec<_> = all.map(|(seen, rates)| (seen.path.clone(), wait(&rates))).collect();
        let mut before = std::mem::take(&mut self.waits);
        for (of, wait) in waits {
            let mut all = before.remove(&of).unwrap_or_default();
            all.push_back(wait);
            all.drain(..all.len().saturating_sub(WAITS));
            self.waits.insert(of, all);
        }
        if self.map.as_ref().is_some_and(|(at, _)| at.elapsed() >= MAP_EVERY) {
            self.map = Some(map());
        }
    }

    pub fn press(&mut self, key: Key) {
        match key {
            Key::Move(step) => self.step(step),
            Key::Table => self.focus = self.other_table(),
            Key::Sort => self.order = self.order.next(),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Faster => self.interval = (self.interval / 2).max(FASTEST),
            Key::Slower => self.interval = (self.interval * 2).min(SLOWEST),
            Key::Map => self.map = if self.map.is_some() { None } else { Some(map()) },
            Key::Help => self.has_help = !self.has_help,
            Key::Filter => self.filter.begin(),
            Key::Type(letter) => self.filter.push(letter),
            Key::Erase if self.is_typing() => self.filter.erase(),
            Key::Enter => self.filter.end(),
            Key::Escape => {
                (self.filter, self.has_help, self.map) = (Filter::default(), false, None);
            }
            Key::End | Key::Erase | Key::Clear | Key::Redraw => {}
        }
        self.settle();
    }

    fn step(&mut self, step: Step) {
        match self.focus {
            Focus::Reserves => {
                let rows = self.paths();
                self.reserve.step(&rows, step);
            }
            Focus::Leases => {
                let rows = self.numbers();
                self.lease.step(&rows, step);
            }
        }
    }

    /// Picks rows that are there, after a change of the rows.
    fn settle(&mut self) {
        let (paths, numbers) = (self.paths(), self.numbers());
        self.reserve.settle(&paths);
        self.lease.settle(&numbers);
        if self.look().is_none_or(|look| look.lent.is_none()) {
            self.focus = Focus::Reserves;
        }
    }

    fn other_table(&self) -> Focus {
        match self.focus {
            Focus::Reserves => Focus::Leases,
            Focus::Leases => Focus::Reserves,
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.ordered().into_iter().map(|(seen, _)| seen.path.clone()).collect()
    }

    fn numbers(&self) -> Vec<u64> {
        self.leases().into_iter().map(|row| row.lease).collect()
    }

    /// Returns the reserves with rates, if the look before saw them.
    fn all(&self) -> Vec<WithRates<'_>> {
        let Some(now) = &self.now else { return Vec::new() };
        let before = self.before.iter().flat_map(|look| &look.reserves);
        let before: HashMap<&Path, &Seen> = before.map(|it| (it.path.as_path(), it)).collect();
        let rates = |seen: &Seen| {
            let then = before.get(seen.path.as_path())?;
            let time = seen.at.saturating_duration_since(then.at);
            Some(Rates::between(&then.numbers, &seen.numbers, time))
        };
        now.reserves.iter().map(|seen| (seen, rates(seen))).collect()
    }

    /// Returns the reserves that the filter accepts, in the user's order.
    pub fn ordered(&self) -> Vec<WithRates<'_>> {
        let mut all = self.all();
        all.retain(|(seen, _)| self.filter.accepts(&[&seen.command, &seen.pid.to_string()]));
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

    /// Returns the leases that the filter accepts, the longest first.
    pub fn leases(&self) -> Vec<&Row> {
        let rows = self.look().and_then(|look| look.lent.as_ref()).map_or(&[][..], |it| &it.rows);
        let accepts = |row: &&Row| {
            // No process is shown for a cache.
            let pid = if row.is_cache { String::new() } else { row.pid.to_string() };
            self.filter.accepts(&[row.name.as_str(), &pid])
        };
        let mut rows: Vec<&Row> = rows.iter().filter(accepts).collect();
        rows.sort_by_key(|row| Reverse(row.bytes));
        rows
    }

    pub fn look(&self) -> Option<&Look> {
        self.now.as_ref()
    }

    pub fn is_picked(&self, seen: &Seen) -> bool {
        self.reserve.is(&seen.path)
    }

    pub fn is_picked_lease(&self, row: &Row) -> bool {
        self.lease.is(&row.lease)
    }

    pub fn focus(&self) -> Focus {
        self.focus
    }

    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    pub fn is_typing(&self) -> bool {
        self.filter.is_typing()
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
