//! [`Cache`]: the tenant of an aging run: a program that reads file pages through a pool.
//!
//! A second of virtual time is a number of gets, by popularity. After a miss the pages around the
//! one that was missed are put, as one who reads ahead does, those that are there still left alone.
//! So the pool fills what first class gives back within a while, with pages that will be asked for.

use glebe::reserve::{Error, Pool, Reserve};

use crate::interrupt;
use crate::reserve::keyed::Random;
use crate::reserve::page_buffer;

const OBJECT: u64 = 1;
/// Pages of the object, in multiples of the reserve.
const OBJECT_SHARE: u64 = 2;
/// Gets in a second of virtual time, as a share of the reserve.
const GETS_SHARE: u64 = 1024;
/// Pages read together, a power of two.
const READ_PAGES: u64 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Cache {
    reserve_pages: u64,
    pool: Pool,
    page: Vec<u8>,
    random: Random,
    pub(super) gets: u64,
    pub(super) hits: u64,
    /// Pages that came back other than put.
    pub(super) wrong_pages: u64,
}

impl Cache {
    /// A full one.
    pub(super) fn new(reserve: &Reserve, seed: u64) -> Result<Self, Error> {
        let mut cache = Self {
            reserve_pages: reserve.len().get(),
            pool: reserve.page_cache().pool("age")?,
            page: page_buffer(),
            random: Random::new(seed),
            gets: 0,
            hits: 0,
            wrong_pages: 0,
        };
        for index in 0..reserve.len().get() {
            interrupt::check();
            cache.put(index)?;
        }
        Ok(cache)
    }

    /// A second of virtual time.
    pub(super) fn second(&mut self) -> Result<(), Error> {
        interrupt::check();
        for _ in 0..self.reserve_pages / GETS_SHARE {
            let index = self.popular();
            self.gets += 1;
            if self.get(index)? {
                self.hits += 1;
                continue;
            }
            let first = index & !(READ_PAGES - 1);
            for near in first..first + READ_PAGES {
                if near == index || !self.get(near)? {
                    self.put(near)?;
                }
            }
        }
        Ok(())
    }

    /// A page of the object, the first ones more often: one in fifteen has half of all gets.
    fn popular(&mut self) -> u64 {
        let mut end = self.reserve_pages * OBJECT_SHARE;
        for _ in 0..3 {
            end = self.random.below(end) + 1;
        }
        end - 1
    }

    fn get(&mut self, index: u64) -> Result<bool, Error> {
        let hit = self.pool.get(OBJECT, index, &mut self.page)?;
        self.wrong_pages += u64::from(hit && self.page[..8] != index.to_ne_bytes());
        Ok(hit)
    }

    /// Whether it is kept is the pool's affair.
    fn put(&mut self, index: u64) -> Result<(), Error> {
        self.page[..8].copy_from_slice(&index.to_ne_bytes());
        self.pool.put(OBJECT, index, &self.page)?;
        Ok(())
    }
}
