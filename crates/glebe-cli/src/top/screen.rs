//! [`Screen`] keeps what the user chose, and what the last looks saw.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::lease::wire::Row;

use super::filter::Filter;
use super::key::Key;
use super::look::{plain, Look, Seen};
use super::page::{Page, Subject};
use super::pick::{Pick, Step};
use super::reserves::Rates;

/// Mean times to give a block that are kept for each reserve.
const WAITS: usize = 240;
/// Nanoseconds: a stranger's process may give any number.
const WAIT_MAX: u64 = 1 << 40;
const FASTEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(3600);
/// A look is old after this time, and after two intervals.
const OLD: Duration = Duration::from_secs(5);

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
    page: Option<Page>,
    filter: Filter,
    focus: Focus,
    reserve: Pick<PathBuf>,
    lease: Pick<u64>,
    now: Option<Look>,
    /// Rates of the reserves of `now` that the look before saw, too.
    rates: Vec<Option<Rates>>,
    /// Places in `now` of the reserves and leases that the filter accepts, in their order.
    reserves: Vec<usize>,
    leases: Vec<usize>,
    waits: HashMap<PathBuf, VecDeque<u64>>,
}

impl Screen {
    pub fn new(interval: Duration, order: Order, has_colors: bool) -> Self {
        Self {
            interval,
            order,
            has_colors,
            is_paused: false,
            page: None,
            filter: Filter::default(),
            focus: Focus::Reserves,
            reserve: Pick::none(),
            lease: Pick::none(),
            now: None,
            rates: Vec::new(),
            reserves: Vec::new(),
            leases: Vec::new(),
            waits: HashMap::new(),
        }
    }

    /// Shows only rows that contain `text`.
    pub fn filtered(self, text: &str) -> Self {
        Self { filter: Filter::new(text.to_owned()), ..self }
    }

    pub fn add(&mut self, look: Look) {
        self.rates = rates(self.now.as_ref(), &look);
        let mut before = std::mem::take(&mut self.waits);
        for (seen, rates) in look.reserves.iter().zip(&self.rates) {
            let wait = rates.and_then(|it| it.wait).unwrap_or(0).min(WAIT_MAX);
            let mut all = before.remove(&seen.path).unwrap_or_default();
            all.push_back(wait);
            all.drain(..all.len().saturating_sub(WAITS));
            self.waits.insert(seen.path.clone(), all);
        }
        self.now = Some(look);
        self.refresh();
    }

    pub fn set_map(&mut self, text: String) {
        self.page.iter_mut().for_each(|page| page.set_map(text.clone()));
    }

    pub fn press(&mut self, key: Key) {
        match key {
            Key::Move(step) => self.step(step),
            Key::Table => self.focus = self.other_table(),
            Key::Sort => self.order = self.order.next(),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Faster => self.interval = (self.interval / 2).max(FASTEST),
            Key::Slower => self.interval = (self.interval * 2).min(SLOWEST),
            Key::Map => self.open(Subject::Map),
            Key::Help => self.open(Subject::Help),
            Key::Filter => self.filter.begin(),
            Key::Type(letter) => self.filter.push(letter),
            Key::Erase if self.is_typing() => self.filter.erase(),
            Key::Enter => self.filter.end(),
            Key::Escape if !self.is_typing() && self.page.is_some() => self.page = None,
            Key::Escape => self.filter = Filter::default(),
            Key::End | Key::Erase | Key::Clear | Key::Redraw => {}
        }
        self.refresh();
    }

    /// Opens a page, or closes it.
    fn open(&mut self, subject: Subject) {
        let is_open = self.page.as_ref().is_some_and(|page| page.is(subject));
        self.page = (!is_open).then(|| Page::new(subject));
    }

    fn step(&mut self, step: Step) {
        if let Some(page) = &mut self.page {
            return page.step(step);
        }
        let Some(now) = &self.now else { return };
        match self.focus() {
            Focus::Reserves => {
                let paths: Vec<_> =
                    self.reserves.iter().map(|it| &now.reserves[*it].path).collect();
                self.reserve.step(&paths, step);
            }
            Focus::Leases => {
                let numbers: Vec<_> = self.leases.iter().map(|it| &rows(now)[*it].lease).collect();
                self.lease.step(&numbers, step);
            }
        }
    }

    /// Chooses and orders the rows, after a change of them or of the user's choice.
    fn refresh(&mut self) {
        let Some(now) = &self.now else { return };
        self.reserves = self.accepted_reserves(now);
        self.leases = self.accepted_leases(now);
        self.reserve.settle(self.reserves.first().map(|it| &now.reserves[*it].path));
        self.lease.settle(self.leases.first().map(|it| &rows(now)[*it].lease));
    }

    fn accepted_reserves(&self, now: &Look) -> Vec<usize> {
        let seen = |nth: usize| &now.reserves[nth];
        let accepts = |nth: &usize| {
            let Seen { command, pid, .. } = seen(*nth);
            self.filter.accepts(&[command, &pid.to_string()])
        };
        let mut all: Vec<usize> = (0..now.reserves.len()).filter(accepts).collect();
        all.sort_by_key(|nth| (seen(*nth).pid, seen(*nth).number));
        match self.order {
            Order::Pid => {}
            Order::Size => all.sort_by_key(|nth| Reverse(seen(*nth).numbers.total)),
            Order::Blocks => all.sort_by_key(|nth| Reverse(seen(*nth).numbers.held)),
            Order::Caches => all.sort_by_key(|nth| Reverse(seen(*nth).numbers.cached)),
            Order::Given => all.sort_by(|one, other| {
                let given = |nth: &usize| self.rates[*nth].map_or(0.0, |it| it.given);
                given(other).total_cmp(&given(one))
            }),
        }
        all
    }

    /// Returns the longest lease first.
    fn accepted_leases(&self, now: &Look) -> Vec<usize> {
        let rows = rows(now);
        let accepts = |nth: &usize| {
            let row = &rows[*nth];
            // No process is shown for a cache.
            let pid = if row.is_cache { String::new() } else { row.pid.to_string() };
            self.filter.accepts(&[&plain(row.name.as_str()), &pid])
        };
        let mut all: Vec<usize> = (0..rows.len()).filter(accepts).collect();
        all.sort_by_key(|nth| Reverse(rows[*nth].bytes));
        all
    }

    fn other_table(&self) -> Focus {
        match self.focus() {
            Focus::Reserves => Focus::Leases,
            Focus::Leases => Focus::Reserves,
        }
    }

    /// Returns the reserves that the filter accepts, in the user's order.
    pub fn ordered(&self) -> Vec<WithRates<'_>> {
        let Some(now) = &self.now else { return Vec::new() };
        self.reserves.iter().map(|nth| (&now.reserves[*nth], self.rates[*nth])).collect()
    }

    /// Returns the leases that the filter accepts, the longest first.
    pub fn leases(&self) -> Vec<&Row> {
        let Some(now) = &self.now else { return Vec::new() };
        self.leases.iter().map(|nth| &rows(now)[*nth]).collect()
    }

    /// Returns the place of the picked reserve in [`Screen::ordered`].
    pub fn picked(&self) -> Option<usize> {
        let now = self.now.as_ref()?;
        self.reserve.at(self.reserves.iter().map(|nth| &now.reserves[*nth].path))
    }

    /// Returns the place of the picked lease in [`Screen::leases`].
    pub fn picked_lease(&self) -> Option<usize> {
        let now = self.now.as_ref()?;
        self.lease.at(self.leases.iter().map(|nth| &rows(now)[*nth].lease))
    }

    pub fn look(&self) -> Option<&Look> {
        self.now.as_ref()
    }

    /// Returns the age of an old look in seconds.
    pub fn age(&self) -> Option<u64> {
        let age = self.now.as_ref()?.at.elapsed();
        (age >= OLD.max(2 * self.interval)).then_some(age.as_secs())
    }

    /// Returns the table that gets the keys. Without leases it is that of reserves.
    pub fn focus(&self) -> Focus {
        let has_leases = self.now.as_ref().is_some_and(|look| look.lent.is_some());
        if has_leases {
            self.focus
        } else {
            Focus::Reserves
        }
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

    pub fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// Returns true if a map should be read. A pause keeps the map that is there.
    pub fn wants_map(&self) -> bool {
        let wants = |page: &Page| page.wants_map() && (page.is_empty() || !self.is_paused);
        self.page.as_ref().is_some_and(wants)
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

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }
}

fn rows(look: &Look) -> &[Row] {
    look.lent.as_ref().map_or(&[], |lent| &lent.rows)
}

/// Returns the changes since the look before, for each reserve that it saw.
fn rates(before: Option<&Look>, now: &Look) -> Vec<Option<Rates>> {
    let before = before.into_iter().flat_map(|look| &look.reserves);
    let before: HashMap<&Path, &Seen> = before.map(|it| (it.path.as_path(), it)).collect();
    let rates = |seen: &Seen| {
        let then = before.get(seen.path.as_path())?;
        let time = seen.at.saturating_duration_since(then.at);
        Some(Rates::between(&then.numbers, &seen.numbers, time))
    };
    now.reserves.iter().map(rates).collect()
}
