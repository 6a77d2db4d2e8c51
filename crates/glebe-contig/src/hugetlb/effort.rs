//! [`Effort`] limits a search, and records its steps in words.

use std::fmt;
use std::time::{Duration, Instant};

use crate::populate::available_on;
use crate::{Error, Options};
use glebe_os::internal::sys::machine::meminfo;
use glebe_os::internal::sys::machine::node_memory;
use glebe_os::internal::sys::machine::numa::Node;
use glebe_os::internal::sys::processes::processor_time;
use glebe_os::units::{Bytes, PageSize};

const LEAVE: Bytes = Bytes::gib(1);
const LEAVE_SHARE: u64 = 10;
const TIME: Duration = Duration::from_secs(2);
const WALL_TIMES: u32 = 5;
const REQUIRED: u32 = 3;

#[derive(Debug)]
pub(super) struct Effort {
    began: Instant,
    worked: Duration,
    /// True if the caller set `time` (wall time).
    is_given: bool,
    time: Duration,
    memory: Bytes,
    tried: Vec<String>,
}

impl Effort {
    pub fn new(len: Bytes, options: &Options) -> Self {
        let gib = Bytes::gib(1).get();
        let whole = u32::try_from(len.get().div_ceil(gib)).unwrap_or(u32::MAX).max(1);
        let times = if options.required.is_some() { REQUIRED } else { 1 };
        let time = TIME.saturating_mul(whole).saturating_mul(times);
        let given = options.search_time;
        let now = Instant::now();
        Self {
            began: options.began.filter(|_| given.is_some()).unwrap_or(now),
            worked: processor_time::of_thread(),
            is_given: given.is_some(),
            time: given.unwrap_or(time),
            memory: options.search.unwrap_or(Bytes::new(u64::MAX)),
            tried: Vec::new(),
        }
    }

    pub fn is_over(&self) -> bool {
        let worked = || processor_time::of_thread().saturating_sub(self.worked);
        self.is_over_after(self.began.elapsed(), worked)
    }

    fn is_over_after(&self, wall: Duration, worked: impl FnOnce() -> Duration) -> bool {
        match self.is_given {
            true => wall >= self.time,
            false => wall >= self.time.saturating_mul(WALL_TIMES) || worked() >= self.time,
        }
    }

    pub fn left(&self) -> Option<Duration> {
        self.is_given.then(|| self.time.saturating_sub(self.began.elapsed()))
    }

    pub fn has_time_for(&self, step: Duration) -> bool {
        self.left().is_none_or(|left| left >= step)
    }

    pub fn apart<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let before = processor_time::of_thread();
        let result = what();
        self.worked = self.worked.saturating_add(processor_time::of_thread() - before);
        result
    }

    /// Returns how many pages the pool may grow by.
    pub fn may_grow(&mut self, size: PageSize, nodes: &[Node]) -> Result<u64, Error> {
        Ok(self.grows_by(spare(nodes)?, size))
    }

    fn grows_by(&mut self, spare: Bytes, size: PageSize) -> u64 {
        if spare < size.bytes() {
            self.note_once(format!(
                "a search leaves the last {LEAVE} of available memory to others"
            ));
        }
        spare.min(self.memory).pages_down(size).get()
    }

    pub fn looks_at(&self, size: PageSize) -> u64 {
        self.memory.pages_down(size).get()
    }

    pub fn note(&mut self, what: String) {
        self.tried.push(what);
    }

    fn note_once(&mut self, what: String) {
        if !self.tried.contains(&what) {
            self.note(what);
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.is_over().then(|| format!("ended by its limit of {:?}", self.time));
        let all: Vec<&str> = self.tried.iter().chain(&ended).map(String::as_str).collect();
        f.write_str(&all.join("; "))
    }
}

pub(super) fn spare(nodes: &[Node]) -> Result<Bytes, Error> {
    let mut available = Bytes::ZERO;
    for node in nodes {
        available = available + node_memory::of(*node)?.available;
    }
    if nodes.is_empty() {
        available = meminfo::available()?;
    }
    Ok(spare_of(available).min(available_on(nodes)?))
}

fn spare_of(available: Bytes) -> Bytes {
    available.saturating_sub(LEAVE.max(Bytes::new(available.get() / LEAVE_SHARE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Contig;

    #[test]
    fn time_goes_with_the_length() {
        let time = |len| Effort::new(len, &Contig::options()).time;
        assert_eq!(time(Bytes::mib(2)), Duration::from_secs(2));
        assert_eq!(time(Bytes::gib(1)), Duration::from_secs(2));
        assert_eq!(time(Bytes::mib(1025)), Duration::from_secs(4));
        assert_eq!(time(Bytes::new(u64::MAX)), TIME.saturating_mul(u32::MAX));
        let required = Contig::options().require_run(Bytes::mib(64));
        assert_eq!(Effort::new(Bytes::mib(64), &required).time, Duration::from_secs(6));
        let with = |time| Effort::new(Bytes::gib(1), &required.clone().search_time(time));
        let mut given = with(Duration::ZERO);
        given.note("nothing".to_owned());
        assert!(given.is_over());
        assert_eq!(given.to_string(), "nothing; ended by its limit of 0ns");
    }

    #[test]
    fn a_time_that_is_given_is_wall_time_and_the_default_is_work() {
        let (seconds, no_work) = (Duration::from_secs, || Duration::ZERO);
        let usual = Effort::new(Bytes::gib(1), &Contig::options());
        assert!(!usual.is_over_after(seconds(9), || Duration::from_millis(1999)));
        assert!(usual.is_over_after(seconds(3), || seconds(2)), "as much work as it may");
        assert!(usual.is_over_after(seconds(10), no_work), "others have the processors");
        assert!(usual.left().is_none() && usual.has_time_for(seconds(1000)));
        let options = Contig::options().search_time(seconds(3));
        let given = Effort::new(Bytes::gib(1), &options);
        assert!(given.is_over_after(seconds(3), no_work));
        assert!(!given.is_over_after(seconds(2), || seconds(100)));
        assert!(!given.has_time_for(seconds(4)));
        let began = Instant::now().checked_sub(seconds(3));
        assert!(Effort::new(Bytes::gib(1), &Options { began, ..options }).is_over());
    }

    #[test]
    fn what_is_apart_is_no_work() {
        let mut effort = Effort::new(Bytes::gib(1), &Contig::options());
        let (before, spun) = (effort.worked, Duration::from_millis(2));
        effort.apart(|| {
            let begin = processor_time::of_thread();
            while processor_time::of_thread() - begin < spun {}
        });
        assert!(effort.worked >= before + spun);
    }

    #[test]
    fn a_search_that_may_take_nothing_says_why_once() {
        let mut effort = Effort::new(Bytes::gib(1), &Contig::options());
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!([64, 1, 0].map(|mib| effort.grows_by(Bytes::mib(mib), size)), [32, 0, 0]);
        assert_eq!(effort.tried, ["a search leaves the last 1 GiB of available memory to others"]);
    }

    #[test]
    fn a_search_leaves_a_gibibyte_and_a_tenth() {
        assert_eq!(spare_of(Bytes::mib(900)), Bytes::ZERO);
        assert_eq!(spare_of(Bytes::gib(4)), Bytes::gib(3));
        assert_eq!(spare_of(Bytes::gib(40)), Bytes::gib(36));
    }
}
