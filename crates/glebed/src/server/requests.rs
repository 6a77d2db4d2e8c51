//! Answers requests. An error of a handler is a breach of the protocol, in words.

use std::time::Instant;

use glebe::internal::sync::Ordering;
use glebe::internal::ClosedBlock;
use glebe::units::Bytes;
use glebe_lease::wire::{Answer, Flags, Message, Request, ROWS_MAX};
use glebe_lease::Row;
use rustix::io::Errno;

use super::{Asked, Refusal, Server};
use crate::quota::Kind;
use crate::stats::{Counter, Stats};

impl Server {
    pub(super) fn handle(
        &mut self,
        key: usize,
        message: Message<Request>,
        begin: Instant,
    ) -> Result<(), String> {
        let Message { call, lease, body } = message;
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if conn.is_adopted && !matches!(body, Request::Release) {
            return Ok(());
        }
        if let Request::Hello { name } = body {
            if std::mem::replace(&mut conn.has_greeted, true) {
                return Err("a second hello".to_owned());
            }
            conn.name = name;
            let welcome = self.welcome();
            return self.answer(key, call, 0, welcome);
        }
        if !conn.has_greeted && !conn.is_adopted {
            return Err("no hello came first".to_owned());
        }
        let uid = conn.uid;
        match body {
            Request::Hello { .. } => Ok(()),
            Request::Lease(wish) => {
                let asked = Asked { call, wish, is_promise: false, tries: 0 };
                let leased = self.ask(key, asked);
                self.answer_ns.record(begin.elapsed().as_nanos() as u64);
                leased.map_or_else(|refusal| self.refuse(key, call, refusal), Ok)
            }
            Request::Promise(wish) => {
                let promised = self.ask(key, Asked { call, wish, is_promise: true, tries: 0 });
                promised.map_or_else(|refusal| self.refuse(key, call, refusal), Ok)
            }
            Request::Take => match self.take(key, call, lease) {
                Ok(()) => Ok(()),
                Err(refusal) => self.refuse(key, call, refusal),
            },
            Request::Mapped => self.done(key, call, lease),
            Request::Release => {
                if self.end_cache(key, lease) {
                    self.count(Counter::Released);
                } else if self.leases.of(key, lease).is_some() {
                    let ended = self.leases.remove(lease);
                    self.count(Counter::Released);
                    ended.into_iter().for_each(|lease| self.end(lease));
                }
                self.done(key, call, lease)
            }
            Request::Offer | Request::Keep => {
                self.turn(key, call, lease, matches!(body, Request::Offer))
            }
            Request::List => self.answer(key, call, 0, Answer::Listed(self.rows(uid, lease))),
            Request::Cache { bytes, name } => {
                let opened = self.cache(key, call, (bytes, name));
                opened.map_or_else(|refusal| self.refuse(key, call, refusal), Ok)
            }
            Request::Place { index } => {
                let given = self.cache_place(key, (call, lease, index));
                given.map_or_else(|refusal| self.refuse(key, call, refusal), Ok)
            }
            Request::Stats => {
                let nodes = self.on_nodes.of(&self.reserve);
                let text = self.stats().openmetrics_on(&nodes);
                self.answer(key, call, 0, Answer::Stats(text))
            }
        }
    }

    /// Returns rows of leases, then of caches, from a number on.
    fn rows(&self, uid: u32, from: u64) -> Vec<Row> {
        let mut rows = self.leases.rows(uid, from, ROWS_MAX);
        rows.extend(self.caches.rows(uid, from, ROWS_MAX - rows.len()));
        rows
    }

    /// Makes a lease a revocable one, or keeps it from now on.
    fn turn(&mut self, key: usize, call: u32, number: u64, may_take: bool) -> Result<(), String> {
        let held = self.leases.of(key, number);
        let held = held.filter(|lease| lease.until.is_none() && !lease.is_promise());
        let Some(lease) = held else {
            let text = "there is no such lease, or its memory is being taken".to_owned();
            return self.refuse(key, call, Refusal { errno: Errno::NOENT, limit: 0, text });
        };
        let flags = Flags { revocable: may_take, ..lease.flags };
        let (uid, bytes, before) = (lease.uid, lease.bytes, lease.kind());
        match self.users.turn(uid, bytes, before, Kind::of(flags)) {
            Ok(()) => {
                lease.flags = flags;
                self.done(key, call, number)
            }
            Err(exceeded) => {
                let refusal = self.over(uid, exceeded);
                self.refuse(key, call, refusal)
            }
        }
    }

    pub(super) fn answer(
        &mut self,
        key: usize,
        call: u32,
        lease: u64,
        body: Answer,
    ) -> Result<(), String> {
        self.send(key, Message { call, lease, body }).map_err(|error| error.to_string())
    }

    /// Answers unless the client wanted no answer.
    pub(super) fn done(&mut self, key: usize, call: u32, lease: u64) -> Result<(), String> {
        match call {
            0 => Ok(()),
            call => self.answer(key, call, lease, Answer::Done),
        }
    }

    pub(super) fn refuse(&mut self, key: usize, call: u32, refusal: Refusal) -> Result<(), String> {
        let Refusal { errno, limit, text } = refusal;
        self.count(match errno {
            Errno::DQUOT => Counter::OverQuota,
            _ => Counter::Refused,
        });
        self.answer(key, call, 0, Answer::Refused { errno: errno.raw_os_error(), limit, text })
    }

    pub(super) fn welcome(&self) -> Answer {
        Answer::Welcome {
            brick: self.brick.get(),
            total: self.reserve.len().bytes(glebe::page_size()).get(),
            free: self.free(),
            longest: self.longest(),
        }
    }

    /// Returns the bytes that no client holds or was promised.
    pub(super) fn free(&self) -> u64 {
        let stock = self.kept.stock().len() as u64 * self.brick.get();
        self.in_reserve().saturating_add(stock).saturating_add(self.caches.bytes())
    }

    /// Returns [`Server::free`] with the brick that the keeper may be zeroing. Waits until it is in
    /// the stock.
    pub(super) fn free_with_filling(&self) -> u64 {
        let _filling = self.kept.filling();
        self.free()
    }

    /// Returns the bytes of the reserve that a block can have.
    pub(super) fn in_reserve(&self) -> u64 {
        ClosedBlock::free(&self.reserve).unwrap_or_default().bytes(glebe::page_size()).get()
    }

    pub(super) fn longest(&self) -> u64 {
        let of_stock = self.kept.stock().longest() as u64 * self.brick.get();
        let (page, brick) = (glebe::page_size(), self.brick.get());
        let of_reserve = self.reserve.largest_run().map_or(0, |run| run.bytes(page).get());
        (of_reserve / brick * brick).max(of_stock)
    }

    pub(super) fn stats(&self) -> Stats {
        let pages = |bytes: u64| Bytes::new(bytes).pages_down(glebe::page_size());
        let mut stats = self.kept.counts.sum();
        stats.held = pages(self.leases.bytes(false));
        stats.promised = pages(self.leases.bytes(true));
        stats.cached = pages(self.caches.bytes());
        stats.stock = pages(self.kept.stock().len() as u64 * self.brick.get());
        let under_way = [&self.kept.returning, &self.kept.making];
        stats.returning = pages(under_way.map(|word| word.load(Ordering::Acquire)).iter().sum());
        stats.grown = self.kept.grown(&self.reserve).pages_down(glebe::page_size());
        stats.lease_ns = self.answer_ns.snapshot();
        stats
    }
}
