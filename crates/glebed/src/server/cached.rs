//! Lends memory that leases leave idle to named caches, and takes it for leases.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe::internal::ClosedBlock;
use glebe::reserve::Request as Run;
use glebe::units::Pages;
use glebe_lease::wire::{Answer, Message, Name};
use rustix::io::Errno;

use super::{Asked, Done, Refusal, Server};
use crate::caches::CACHES_MAX;
use crate::keeper::take_back_now;
use crate::stats::Counter;

/// Least time between two requests that take the memory of all caches, or leases, for a run.
pub(super) const SWEEP: Duration = Duration::from_secs(10);
/// How often caches give memory up for a request.
const TRIES: u32 = 3;
/// Time without memory for caches while another process changes the pool.
const REST: Duration = Duration::from_millis(50);

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
        // Places beyond what leases leave would refuse their keys.
        let most = total.saturating_sub(self.kept.target as u64 * self.brick.get());
        let most = most.max(self.brick.get());
        let places = bytes.clamp(1, most).div_ceil(self.caches.place().get());
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
            self.users.zero(uid, self.brick.get()).map_err(|exceeded| self.over(uid, exceeded))?;
            let block = self.spare(number).inspect_err(|_| {
                self.users.unzero(uid, self.brick.get());
            })?;
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

    /// Takes a brick that the stock and no request needs, else one of a larger cache.
    fn spare(&mut self, number: u64) -> Result<ClosedBlock, Refusal> {
        let nothing = || Refusal {
            errno: Errno::NOMEM,
            limit: 0,
            text: "leases and other caches have all memory".to_owned(),
        };
        let missing = self.kept.target.saturating_sub(self.kept.stock().len()) + 1;
        // Memory that was added goes back once leases need it no more.
        let grown = self.kept.grown(&self.reserve).get();
        let free = self.in_reserve().saturating_sub(grown) / self.brick.get();
        if self.coming > 0 || self.pool_rests > Instant::now() {
            return Err(nothing());
        }
        if free < missing as u64 {
            let mut taken = vec![self.caches.take_of_larger(number).ok_or_else(nothing)?];
            self.count_taken(&taken);
            if !ClosedBlock::cut(&mut taken) {
                // Another process changes the pool. The keeper waits for it.
                self.pool_rests = Instant::now() + REST;
                self.pass_to_keeper(taken, false);
                return Err(nothing());
            }
            self.kept.under_way(self.brick.get(), true);
            take_back_now(&self.kept, taken, &self.grower);
        }
        let run = Run::new(Pages::new(1)).any();
        ClosedBlock::of(&self.reserve, run).map_err(|_| nothing())
    }

    /// Takes memory of caches for a request of `bytes`: as much as is needed, again if others took
    /// it. A run may need the memory of all caches, but users cannot empty these all the time. A
    /// revocable request gets none.
    pub(super) fn given_up(
        &mut self,
        count: usize,
        contiguous: bool,
        asked: &Asked,
        bytes: u64,
    ) -> Vec<ClosedBlock> {
        if self.free_with_filling() < bytes || asked.tries >= TRIES || asked.wish.flags.revocable {
            return Vec::new();
        }
        let mut taken = match contiguous && asked.tries > 0 {
            true => Vec::new(),
            false => self.caches.take(count, contiguous),
        };
        if taken.is_empty() && contiguous && self.next_sweep <= Instant::now() {
            self.next_sweep = Instant::now() + SWEEP;
            taken = self.caches.take_all();
        }
        self.count_taken(&taken);
        taken
    }

    /// Looks at a request again once memory of caches is back. Caches get none until then.
    pub(super) fn after_caches(
        &mut self,
        key: usize,
        asked: Asked,
        blocks: Vec<ClosedBlock>,
    ) -> Result<(), Refusal> {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let (serial, made, wake) = (conn.serial, self.made.0.clone(), Arc::clone(&self.wake));
        let (kept, grower) = (Arc::clone(&self.kept), self.grower.clone());
        let asked = Asked { tries: asked.tries + 1, ..asked };
        // The blocks follow once there is a thread: their drop would wait here.
        let (give, take) = std::sync::mpsc::channel();
        let work = move || {
            take.into_iter().for_each(|blocks| take_back_now(&kept, blocks, &grower));
            let _ = made.send(Done::Came(key, serial, asked));
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        };
        let started = std::thread::Builder::new().name("glebed-caches".to_owned()).spawn(work);
        if let Err(error) = started {
            self.pass_to_keeper(blocks, false);
            let text = format!("no thread to take memory of caches: {error}");
            return Err(Refusal { errno: Errno::AGAIN, limit: 0, text });
        }
        conn.under_way += 1;
        self.coming += 1;
        self.kept.under_way(blocks.len() as u64 * self.brick.get(), true);
        // The thread lives until it has them.
        let _ = give.send(blocks);
        Ok(())
    }

    pub(super) fn ask_again(&mut self, key: usize, serial: u64, asked: Asked) {
        self.coming -= 1;
        let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.serial == serial) else {
            return;
        };
        conn.under_way -= 1;
        let done = self.ask(key, asked);
        let done = done.map_or_else(|refusal| self.refuse(key, asked.call, refusal), Ok);
        if done.is_err() || self.flush(key).is_err() {
            self.close(key);
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
