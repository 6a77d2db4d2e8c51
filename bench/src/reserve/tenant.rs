//! [`Tenant`]: keeps a reserve full of distinguishable pages, and checks them.

use glebe::reserve::{Namespace, Reserve};

use super::keyed::{self, Random};
use super::page_buffer;
use crate::interrupt;
use crate::report::Report;
use crate::Outcome;

pub(super) struct Tenant {
    pub(super) pool: Namespace,
    page: Vec<u8>,
    pub(super) next: u64,
    random: Random,
    wrong_pages: u64,
    failures: u64,
}

pub(super) const OBJECT: u64 = 1;
const VERSION: u64 = 1;
/// `1 / FREE_SHARE` of the pages may stay free.
const FREE_SHARE: u64 = 512;

impl Tenant {
    pub(super) fn new(reserve: &Reserve) -> Outcome<Self> {
        let (pool, page) = (reserve.page_cache().namespace("reserve")?, page_buffer());
        let mut tenant =
            Self { pool, page, next: 0, random: Random::new(2), wrong_pages: 0, failures: 0 };
        tenant.put_new(reserve.len().get());
        Ok(tenant)
    }

    /// Puts new pages until at most `1 / FREE_SHARE` is free, or until twice as many were put as
    /// the reserve has: a put may replace a page instead of taking a free one.
    pub(super) fn refill(&mut self, reserve: &Reserve) {
        let share = reserve.len().get() / FREE_SHARE;
        for _ in 0..2 * FREE_SHARE {
            if reserve.stats().free.get() <= share {
                break;
            }
            self.put_new(share);
        }
    }

    pub(super) fn put_new(&mut self, count: u64) {
        for index in self.next..self.next + count {
            interrupt::check();
            keyed::fill(&mut self.page, OBJECT, index, VERSION);
            self.failures += u64::from(self.pool.put(OBJECT, index, &self.page).is_err());
        }
        self.next += count;
    }

    pub(super) fn look(&mut self, count: u64, recent: u64) {
        let recent = recent.min(self.next);
        for _ in 0..count {
            let index = self.next - recent + self.random.below(recent);
            match self.pool.get(OBJECT, index, &mut self.page) {
                Ok(true) if keyed::version(&self.page, OBJECT, index) != Some(VERSION) => {
                    self.wrong_pages += 1;
                }
                Ok(_) => {}
                Err(_) => self.failures += 1,
            }
        }
    }

    pub(super) fn report(&self, report: &mut Report) {
        report.check("wrong_bytes", self.wrong_pages * self.page.len() as u64);
        report.check("failures", self.failures);
    }
}
