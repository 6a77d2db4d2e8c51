//! [`Effort`]: how much a search may cost, and what it did, in words.

use std::fmt;
use std::time::{Duration, Instant};

use crate::contig::populate::machine_available;
use crate::contig::{Error, Options};
use crate::sys::hugetlb::Pool;
use crate::sys::meminfo;
use crate::units::{Bytes, PageSize};

/// What a search leaves to the machine, at least.
const LEAVE: Bytes = Bytes::gib(1);
/// And at least this share of what is available.
const LEAVE_SHARE: u64 = 10;
/// Time for a search of up to a GiB, and for each GiB beyond.
const TIME: Duration = Duration::from_secs(2);
/// As many times that for a run without which the caller has nothing.
const REQUIRED: u32 = 3;

/// What a search may cost.
#[derive(Debug)]
pub(super) struct Effort {
    began: Instant,
    time: Duration,
    /// Bytes to look at, at most.
    memory: Bytes,
    tried: Vec<String>,
}

impl Effort {
    /// For `len` bytes, unless the caller said otherwise.
    pub fn new(len: Bytes, options: &Options) -> Self {
        let gib = Bytes::gib(1).get();
        let whole = u32::try_from(len.get().div_ceil(gib)).unwrap_or(u32::MAX).max(1);
        let times = if options.required.is_some() { REQUIRED } else { 1 };
        let time = TIME.saturating_mul(whole).saturating_mul(times);
        let time = options.search_time.unwrap_or(time);
        let memory = options.search.unwrap_or(Bytes::new(u64::MAX));
        Self { began: Instant::now(), time, memory, tried: Vec::new() }
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.began.elapsed() >= self.time
    }

    /// Does what takes the time that the kernel takes for it: none of the search's.
    pub fn apart<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let before = Instant::now();
        let result = what();
        self.time = self.time.saturating_add(before.elapsed());
        result
    }

    /// Pages that a pool may grow by to look at them.
    pub fn may_grow(&self, pool: &Pool) -> Result<u64, Error> {
        Ok(spare()?.min(self.memory).pages_down(pool.size()).get())
    }

    /// Pages to look at, at most.
    pub fn looks_at(&self, size: PageSize) -> u64 {
        self.memory.pages_down(size).get()
    }

    /// Writes down what was tried.
    pub fn note(&mut self, what: String) {
        self.tried.push(what);
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tried.join("; "))?;
        match self.is_over() {
            true => write!(f, "; ended by its limit of {:?}", self.time),
            false => Ok(()),
        }
    }
}

/// Memory that a search may have for a moment, beyond what was asked for.
pub(super) fn spare() -> Result<Bytes, Error> {
    Ok(spare_of(meminfo::available()?).min(machine_available()?))
}

fn spare_of(available: Bytes) -> Bytes {
    available.saturating_sub(LEAVE.max(Bytes::new(available.get() / LEAVE_SHARE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contig::Contig;

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

        let mut apart = with(Duration::from_millis(50));
        apart.apart(|| std::thread::sleep(Duration::from_millis(60)));
        assert!(apart.time >= Duration::from_millis(110));
    }

    #[test]
    fn a_search_leaves_a_gibibyte_and_a_tenth() {
        assert_eq!(spare_of(Bytes::mib(900)), Bytes::ZERO);
        assert_eq!(spare_of(Bytes::gib(4)), Bytes::gib(3));
        assert_eq!(spare_of(Bytes::gib(40)), Bytes::gib(36));
    }
}
