//! [`Options`]: what a region is to be like.

use std::time::Duration;

use super::optimistic::OnLost;
use super::{Engine, Error, Region};
use crate::units::Bytes;

/// What a [`Region`] is to be like; from [`Region::options`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until the region is made"]
pub struct Options {
    pub(super) engine: Option<Engine>,
    pub(super) huge: bool,
    pub(super) cap: Option<Bytes>,
    pub(super) max_age: Option<Duration>,
    pub(super) without_scan: bool,
    pub(super) on_lost: Option<OnLost>,
}

impl Options {
    /// This engine or an error, instead of *scan* where the machine has it, else *tag*.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Whether the memory is in transparent huge pages, which are then marked and lost whole. All
    /// of it is populated when the region is made.
    pub fn huge(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// At most so much memory is held by what is marked: more of it is dropped after each mark,
    /// the oldest of the lowest priority first.
    pub fn cap(mut self, cap: Bytes) -> Self {
        self.cap = Some(cap);
        self
    }

    /// What has been marked so long is dropped at the next mark of new memory in the region.
    /// Nothing is dropped between marks: a region that marks nothing more keeps what it has
    /// marked until it is unmarked, or the kernel takes it.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Whether to work as on a kernel without `PAGEMAP_SCAN` (before Linux 6.7). For tests.
    pub fn without_pagemap_scan(mut self, without: bool) -> Self {
        self.without_scan = without;
        self
    }

    /// A region of its own memory: `len` bytes, rounded up to whole granules, all zeros.
    ///
    /// # Errors
    /// [`Error::Empty`] for a length of zero, [`Error::ZeroCap`], [`Error::Locked`] where the
    /// process locks all its memory, [`Error::SelfTest`], [`Error::HandlerCovered`], or what the
    /// kernel refuses: memory, or the engine that was asked for.
    pub fn map(self, len: Bytes) -> Result<Region, Error> {
        Region::with(&self, len)
    }
}
