//! Lends memory that leases leave idle to named caches, and takes it for leases.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use glebe::internal::ClosedBlock;
use glebe::reserve::{Promise, Request as Run, ReserveError};
use glebe::units::Pages;
use glebe_lease::wire::{Answer, Message, Name};
use rustix::io::Errno;

use super::{Refusal, Server};
use crate::caches::CACHES_MAX;
use crate::keeper::taken_from_client;
use crate::stats::Counter;

impl Server {
    /// Opens a user's cache, or makes it.
    pub(super) fn cache(
        &mut self,
        key: usize,
        call: u32,
        (bytes, name): (u64, Name),
    ) -> Result<(), Refusal> {
        let Some(uid) = self.conns.get(key).map(|conn| conn.uid) else { return Ok(()) };
        let number = match self.caches.find(uid, name) {
            Some(number) => number,
            None => self.new_cache(uid, bytes, name)?,
        };
        let place = self.caches.place().get();
        let shown =
            self.caches.shown(number).map(|(places, file)| (places, file.try_clone_to_owned()));
        let Some((places, Ok(file))) = shown else {
            let text = "no descriptor is left for the cache".to_owned();
            return Err(Refusal { errno: Errno::MFILE, limit: 0, text });
        };
        self.send_file(
            key,
            Message { call, lease: number, body: Answer::Cache { places, place } },
            file,
        );
        Ok(())
    }

    fn new_cache(&mut self, uid: u32, bytes: u64, name: Name) -> Result<u64, Refusal> {
        if self.caches.of(uid) >= CACHES_MAX {
            let text = format!("user {uid} has {CACHES_MAX} caches, the limit");
            return Err(Refusal { errno: Errno::DQUOT, limit: CACHES_MAX as u64, text });
        }
        let total = self.reserve.len().bytes(glebe::page_size()).get();
        let places = bytes.clamp(1, total).div_ceil(self.caches.place().get());
        self.caches.add(uid, name, places as usize).map_err(|error| {
            let text = format!("the cache's control file: {error}");
            Refusal { errno: Errno::NOMEM, limit: 0, text }
        })
    }

    /// Gives a place of a cache, with memory if the reserve has some to spare.
    pub(super) fn cache_place(
        &mut self,
        key: usize,
        (call, number, index): (u32, u64, u64),
    ) -> Result<(), Refusal> {
        let Some(uid) = self.conns.get(key).map(|conn| conn.uid) else { return Ok(()) };
        if !self.caches.has(uid, number, index) {
            let text = format!("no cache of user {uid} has the number {number} and place {index}");
            return Err(Refusal { errno: Errno::INVAL, limit: 0, text });
        }
        if self.caches.filled(number, index).is_none() {
            let block = self.spare(number)?;
            self.caches.fill(number, index, block);
            self.count(Counter::CachePlaces);
        }
        let place = self.caches.filled(number, index);
        let place = place.map(|(generation, file)| (generation, file.try_clone_to_owned()));
        let Some((generation, Ok(file))) = place else {
            let text = "no descriptor is left for the place".to_owned();
            return Err(Refusal { errno: Errno::MFILE, limit: 0, text });
        };
        let body = Answer::Place { generation };
        self.send_file(key, Message { call, lease: number, body }, file);
        Ok(())
    }

    /// Takes a brick that the stock does not need, else one of a larger cache.
    fn spare(&mut self, number: u64) -> Result<ClosedBlock, Refusal> {
        let missing = self.kept.target.saturating_sub(self.kept.stock().len()) + 1;
        // Memory that was added goes back once leases need it no more.
        let grown = self.kept.grown(&self.reserve).get();
        let free = self.in_reserve().saturating_sub(grown) / self.brick.get();
        if free < missing as u64 {
            if let Some(taken) = self.caches.take_of_larger(number) {
                self.kept.counts.add(Counter::CacheTaken, 1);
                taken_from_client(&self.kept, vec![taken], &self.grower);
            } else {
                let text = "leases and other caches have all memory".to_owned();
                return Err(Refusal { errno: Errno::NOMEM, limit: 0, text });
            }
        }
        let run = Run::new(Pages::new(1)).any();
        ClosedBlock::of(&self.reserve, run).map_err(|error| Refusal {
            errno: Errno::NOMEM,
            limit: 0,
            text: error.to_string(),
        })
    }

    /// Takes memory of caches that may make room for `count` bricks.
    pub(super) fn given_up(&mut self, count: usize, contiguous: bool) -> Vec<ClosedBlock> {
        let taken = self.caches.take(count, contiguous);
        self.count_taken(&taken);
        taken
    }

    /// Sets memory aside, with that of caches. Others wait meanwhile.
    pub(super) fn with_caches(
        &mut self,
        count: usize,
        contiguous: bool,
        run: Run,
    ) -> Result<Promise, ReserveError> {
        loop {
            let promised = ClosedBlock::promise(&self.reserve, run);
            if promised.is_ok() || self.caches.filled_places() == 0 {
                return promised;
            }
            let taken = self.given_up(count, contiguous);
            taken_from_client(&self.kept, taken, &self.grower);
        }
    }

    fn count_taken(&self, taken: &[ClosedBlock]) {
        self.kept.counts.add(Counter::CacheTaken, taken.len() as u64);
    }

    pub(super) fn end_cache(&mut self, key: usize, number: u64) -> bool {
        let Some(uid) = self.conns.get(key).map(|conn| conn.uid) else { return false };
        let Some(blocks) = self.caches.remove(uid, number) else { return false };
        self.pass_to_keeper(blocks, false);
        true
    }

    /// Takes the memory of caches that nobody uses.
    pub(super) fn look_at_caches(&mut self) {
        if self.next_look > Instant::now() {
            return;
        }
        self.next_look = Instant::now() + self.settings.cache_idle;
        let unused = self.caches.take_unused();
        self.count_taken(&unused);
        if !unused.is_empty() {
            self.pass_to_keeper(unused, false);
        }
    }

    /// Sends an answer with a file. The connection of a client that reads no answers ends.
    fn send_file(&mut self, key: usize, message: Message<Answer>, file: OwnedFd) {
        let Some(conn) = self.conns.get(key) else { return };
        message.encode(&mut self.out);
        let files: [BorrowedFd<'_>; 1] = [std::os::fd::AsFd::as_fd(&file)];
        if !conn.waiting.is_empty() || conn.packets.send(&self.out, &files).is_err() {
            self.close(key);
        }
    }
}
