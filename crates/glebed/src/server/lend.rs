//! Gives memory to clients and takes it back.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use glebe::contig::Node;
use glebe::internal::sync::Ordering;
use glebe::internal::ClosedBlock;
use glebe::reserve::{Promise, Request as Run, Reserve, ReserveError};
use glebe::units::{Bytes, Pages};
use glebe_lease::wire::{Answer, Flags, Message, Wish, FILES_MAX, FRAMES_MAX};
use rustix::io::Errno;

use super::adopt::cut;
use super::found::Found;
use super::{Asked, Done, Made, Refusal, Server};
use crate::conn::Waiting;
use crate::leases::{Held, Lease};
use crate::quota::{Exceeded, Kind};
use crate::stats::Counter;
use crate::store::{of_conn, StoredLease};

/// Most bytes that are zeroed while others wait: about 1 ms.
const LONG: u64 = 8 << 20;

impl Server {
    /// Answers a request, or has memory of caches taken for it first.
    pub(super) fn ask(&mut self, key: usize, asked: Asked) -> Result<(), Refusal> {
        let Asked { call, wish, is_promise, .. } = asked;
        let run = self.checked(key, &wish)?;
        let bytes = run.0.bytes(glebe::page_size()).get();
        let kind = Kind { is_promise, ..Kind::of(wish.flags) };
        self.charge(key, bytes, kind)?;
        let found = match is_promise {
            true => self.promise(key, (call, &wish), run).map(|()| None),
            false => self.blocks(&wish, run).map(Some),
        };
        let done = match found {
            Ok(None) => Ok(()),
            Ok(Some(found)) => self.lend(key, call, &wish, (bytes, found)),
            Err(error) => {
                let count = (run.0.get() / self.pages_of_brick()) as usize;
                // A promise is of adjacent bricks.
                let contiguous = count > 1 && is_promise || self.needs_run(&wish, run);
                let taken = self.given_up(count, contiguous, &asked, bytes);
                self.undo(key, bytes, kind);
                let flags = Flags { contiguous, ..wish.flags };
                return match taken.is_empty() {
                    true => Err(self.refusal(run.0, flags, &error)),
                    false => self.after_caches(key, asked, taken),
                };
            }
        };
        if done.is_err() {
            self.undo(key, bytes, kind);
        }
        done
    }

    /// Returns true if a lease needs adjacent frames, or an alignment, beyond a page of the pool.
    fn needs_run(&self, wish: &Wish, (pages, align): (Pages, Pages)) -> bool {
        wish.flags.contiguous && pages > self.pool_page || align > self.pool_page
    }

    fn pages_of_brick(&self) -> u64 {
        self.brick.pages_down(glebe::page_size()).get()
    }

    /// Gives memory that the user is charged for. Another thread takes as long as it needs, if that
    /// is long.
    fn lend(
        &mut self,
        key: usize,
        call: u32,
        wish: &Wish,
        (bytes, found): (u64, Found),
    ) -> Result<(), Refusal> {
        let is_long = bytes > LONG && !matches!(found, Found::Ready(_));
        if wish.flags.one_file || is_long {
            return self.make(key, call, wish, (bytes, found));
        }
        let blocks = found.taken().map_err(|error| {
            let pages = Bytes::new(bytes).pages_up(glebe::page_size());
            self.refusal(pages, Flags { contiguous: false, ..wish.flags }, &error)
        })?;
        self.give(key, call, wish, (bytes, blocks));
        Ok(())
    }

    /// Returns the pages and the alignment in pages.
    fn checked(&self, key: usize, wish: &Wish) -> Result<(Pages, Pages), Refusal> {
        let bad = |limit, text| Refusal { errno: Errno::INVAL, limit, text };
        if wish.bytes == 0 {
            return Err(bad(self.brick.get(), "a lease of 0 bytes; the least is 1".to_owned()));
        }
        let base = glebe::page_size();
        let align = wish.align.max(1);
        if !align.is_power_of_two() {
            return Err(bad(0, format!("alignment of {align} is not a power of two")));
        }
        let (lost, total) = (self.lost(), self.reserve.len().bytes(base).get());
        if align > total.next_power_of_two() {
            let text = format!("alignment of {}, beyond the reserve", Bytes::new(align));
            return Err(bad(total, text));
        }
        if let Some(node) = wish.node.filter(|node| self.nodes != [Node(*node)]) {
            let text = format!("memory of NUMA node {node} alone; there are {:?}", self.nodes);
            return Err(bad(0, text));
        }
        let Some(conn) = self.conns.get(key) else { return Err(bad(0, String::new())) };
        let most = self.settings.quota.leases;
        if conn.uid != 0 && most > 0 && self.leases.count(key) + conn.under_way >= most {
            let text = format!("{most} leases of a connection, the limit");
            return Err(Refusal { errno: Errno::DQUOT, limit: most as u64, text });
        }
        let bytes = wish.bytes.checked_next_multiple_of(self.brick.get());
        // Another thread moves lost pages from one number to the other.
        let lost = lost.max(self.lost());
        let most = total.saturating_add(lost).saturating_add(self.growable());
        let bytes = bytes.filter(|bytes| *bytes <= most).ok_or_else(|| {
            let longest = self.longest();
            let [asked, total, run] = [wish.bytes, total, longest].map(Bytes::new);
            let (brick, none) = (self.brick, self.none_added());
            let text = format!(
                "{asked} asked for, in bricks of {brick}; the reserve has {total}, its longest run \
                 {run}{none}"
            );
            Refusal { errno: Errno::NOMEM, limit: longest, text }
        })?;
        let run = [bytes, align].map(|bytes| Bytes::new(bytes).pages_up(base));
        let run = (run[0], run[1]);
        if !self.sees_frames && self.needs_run(wish, run) {
            let [page, bytes] = [self.pool_page, run.0.max(run.1)].map(|pages| pages.bytes(base));
            let text = format!(
                "{bytes} in one run, or so aligned; the server sees no page frames, so only {page} \
                 are known to be adjacent"
            );
            return Err(Refusal { errno: Errno::NOMEM, limit: self.longest(), text });
        }
        Ok(run)
    }

    fn lost(&self) -> u64 {
        Pages::new(self.kept.lost.load(Ordering::Acquire)).bytes(glebe::page_size()).get()
    }

    fn charge(&mut self, key: usize, bytes: u64, kind: Kind) -> Result<(), Refusal> {
        let Some(conn) = self.conns.get(key) else { return Ok(()) };
        let uid = conn.uid;
        self.users.add(uid, bytes, kind).map_err(|exceeded| self.over(uid, exceeded))
    }

    pub(super) fn over(&self, uid: u32, exceeded: Exceeded) -> Refusal {
        let Exceeded { what, limit } = exceeded;
        let brick = self.brick;
        let text = format!(
            "{limit} is what a user {what}; user {uid} asks for more, in bricks of {brick}"
        );
        Refusal { errno: Errno::DQUOT, limit: limit.get(), text }
    }

    fn undo(&mut self, key: usize, bytes: u64, kind: Kind) {
        if let Some(conn) = self.conns.get(key) {
            self.users.undo(conn.uid, bytes, kind);
        }
    }

    /// Takes memory: from the stock, else from the reserve, else from both.
    fn blocks(
        &mut self,
        wish: &Wish,
        (pages, align): (Pages, Pages),
    ) -> Result<Found, ReserveError> {
        let each = self.pages_of_brick();
        let count = (pages.get() / each) as usize;
        // A request waits for memory that caches gave up for it.
        if wish.flags.revocable && self.coming > 0 {
            return Err(ReserveError::NoRun { asked: pages, largest: Pages::ZERO });
        }
        // Each page is aligned to its length, so a smaller alignment needs no run.
        let contiguous = wish.flags.contiguous || align > self.pool_page;
        let ready = self.kept.stock().take(count, contiguous, align.get());
        if let Some(blocks) = ready {
            self.count(Counter::Ahead);
            self.since.get_or_insert_with(Instant::now);
            return Ok(Found::Ready(blocks));
        }
        let largest = self.reserve.largest_run().unwrap_or_default();
        let no_run = ReserveError::NoRun { asked: pages, largest };
        if self.free_with_filling() < pages.bytes(glebe::page_size()).get() {
            return Err(no_run);
        }
        let run = Run::new(pages).align(align);
        let place = |run: Run| ClosedBlock::promise(&self.reserve, run).map(|run| vec![run]);
        let scattered = || match contiguous {
            true => Err(no_run),
            false => place(run.any()).or_else(|error| pieces(&self.reserve, count).ok_or(error)),
        };
        let placed = place(run).or_else(|_| {
            // Bricks of the stock may complete a run.
            let _filling = self.kept.filling();
            ClosedBlock::reopen(self.kept.stock().take_all());
            self.since.get_or_insert_with(Instant::now);
            place(run).or_else(|_| scattered())
        });
        Ok(Found::Placed(placed?))
    }

    pub(super) fn end_recalled(&mut self) {
        if self.leases.next_end().is_none() {
            return;
        }
        for number in self.leases.ended(Instant::now()) {
            let Some(lease) = self.leases.remove(number) else { continue };
            self.count(Counter::Revoked);
            let key = lease.conn;
            self.end(lease);
            let _ = self.send(key, Message { call: 0, lease: number, body: Answer::Revoked });
        }
    }

    /// Takes a lease's memory back, which cuts its files.
    pub(super) fn end(&mut self, lease: Lease) {
        self.users.remove(lease.uid, lease.bytes, lease.kind());
        let is_revoked = lease.until.is_some_and(|until| until <= Instant::now());
        if let Some(name) = &lease.stored {
            let _ = self.store.forget(name);
        }
        match lease.held {
            Held::Given(blocks) => self.pass_to_keeper(blocks, is_revoked),
            Held::Adopted(files) => cut(&files),
            Held::Promised(_) => {}
        }
    }

    /// Cuts memory and passes it on at once if its client still uses it.
    pub(super) fn pass_to_keeper(&mut self, mut blocks: Vec<ClosedBlock>, is_revoked: bool) {
        let pages: u64 = blocks.iter().map(|block| block.pages().get()).sum();
        self.kept.under_way(Pages::new(pages).bytes(glebe::page_size()).get(), true);
        if is_revoked {
            ClosedBlock::cut(&mut blocks);
            let _ = self.ended.send(blocks);
            return;
        }
        self.returned.append(&mut blocks);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Returns an entry of the table; a lease without a name has its client's.
    fn entry(&self, key: usize, wish: &Wish, bytes: u64, held: Held) -> Option<Lease> {
        let conn = self.conns.get(key)?;
        let name = if wish.name.as_str().is_empty() { conn.name } else { wish.name };
        let (uid, pid, flags, until) = (conn.uid, conn.pid, wish.flags, None);
        Some(Lease { conn: key, uid, pid, held, bytes, flags, name, until, stored: None })
    }

    /// Enters the lease, and queues its messages.
    fn give(
        &mut self,
        key: usize,
        call: u32,
        wish: &Wish,
        (bytes, blocks): (u64, Vec<ClosedBlock>),
    ) {
        let Some(mut lease) = self.entry(key, wish, bytes, Held::Given(blocks)) else { return };
        let (frames, count) = (lease.frames(), lease.files().len());
        let number = self.leases.add(lease);
        self.count(Counter::Leased);
        self.keep(key, number);
        let file = bytes / (count as u64).max(1);
        let page = self.pool_page.bytes(glebe::page_size()).get();
        let a_file = (file / page) as usize;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let most = files_a_message(a_file);
        for first in (0..count).step_by(most) {
            let files = first..(first + most).min(count);
            let shown = frames.iter().skip(first * a_file).take(files.len() * a_file);
            let body = Answer::Leased {
                bytes,
                file,
                page,
                first: first as u32,
                count: files.len() as u32,
                frames: shown.take(FRAMES_MAX).copied().collect(),
            };
            let mut out = Vec::with_capacity(64 + 8 * files.len() * a_file.min(FRAMES_MAX));
            Message { call, lease: number, body }.encode(&mut out);
            conn.waiting.push_back(Waiting { bytes: out, lease: number, files });
        }
    }

    /// Has the lease and its connection kept for the next daemon, before the client gets it.
    fn keep(&mut self, key: usize, number: u64) {
        let Some(conn) = self.conns.get(key).filter(|_| self.settings.stored > 0) else { return };
        let Some(lease) = self.leases.of(key, number) else { return };
        let (serial, Lease { bytes, flags, name, .. }) = (conn.serial, &*lease);
        let stored = StoredLease { number, serial, bytes: *bytes, flags: *flags, name: *name };
        let stored = stored.to_string();
        self.store.keep(of_conn(serial), &[conn.packets.as_fd()]);
        self.store.keep(stored.clone(), &lease.files());
        lease.stored = Some(stored);
    }

    /// Takes memory in a thread of its own.
    fn make(
        &mut self,
        key: usize,
        call: u32,
        wish: &Wish,
        (bytes, found): (u64, Found),
    ) -> Result<(), Refusal> {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let (serial, uid, wish, made) = (conn.serial, conn.uid, *wish, self.made.0.clone());
        let wake = Arc::clone(&self.wake);
        let work = move || {
            let taken = found.taken().map_err(|why| (why, Vec::new()));
            let blocks = taken.and_then(|blocks| match wish.flags.one_file {
                true => ClosedBlock::concat(blocks).of_one_file().map(|block| vec![block]),
                false => Ok(blocks),
            });
            let made_of = Made { conn: key, uid, serial, call, wish, bytes, blocks };
            let _ = made.send(Done::Made(made_of));
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        };
        let started = std::thread::Builder::new().name("glebed-maker".to_owned()).spawn(work);
        started.map_err(|error| {
            let text = format!("no thread to take the memory: {error}");
            Refusal { errno: Errno::AGAIN, limit: 0, text }
        })?;
        conn.under_way += 1;
        self.soon_revocable += if wish.flags.revocable { bytes } else { 0 };
        self.kept.making.fetch_add(bytes, Ordering::AcqRel);
        Ok(())
    }

    pub(super) fn finish(&mut self, made: Made) {
        let Made { conn: key, uid, serial, call, wish, bytes, blocks } = made;
        let is_there = self.conns.get(key).is_some_and(|conn| conn.serial == serial);
        self.kept.making.fetch_sub(bytes, Ordering::AcqRel);
        self.soon_revocable -= if wish.flags.revocable { bytes } else { 0 };
        let blocks = blocks.map_err(|(why, parts)| {
            if !parts.is_empty() {
                // At once, because cut bricks keep the pools' lock.
                self.kept.under_way(bytes, true);
                let _ = self.ended.send(parts);
            }
            format!("the memory could not be taken: {why}")
        });
        let blocks = match blocks {
            Ok(blocks) if wish.flags.one_file && !self.is_as_wished(&blocks, &wish) => {
                self.pass_to_keeper(blocks, false);
                Err("the kernel put the file's pages apart; ask again".to_owned())
            }
            other => other,
        };
        match blocks {
            Ok(blocks) if is_there => self.give(key, call, &wish, (bytes, blocks)),
            other => {
                self.users.remove(uid, bytes, Kind::of(wish.flags));
                match other {
                    Ok(blocks) => self.pass_to_keeper(blocks, false),
                    Err(text) if is_there => {
                        let refusal = Refusal { errno: Errno::AGAIN, limit: 0, text };
                        let _ = self.refuse(key, call, refusal);
                    }
                    Err(_) => {}
                }
            }
        }
        if let Some(conn) = self.conns.get_mut(key).filter(|_| is_there) {
            conn.under_way -= 1;
            if self.flush(key).is_err() {
                self.close(key);
            }
        }
    }

    /// Returns false if the pages are not one run at the alignment, although that was wished.
    /// Hidden frames prove nothing beyond a page of the pool.
    fn is_as_wished(&self, blocks: &[ClosedBlock], wish: &Wish) -> bool {
        let base = glebe::page_size();
        let each = self.pool_page.get();
        let align = Bytes::new(wish.align).pages_up(base).get().max(1);
        if !wish.flags.contiguous && align <= each {
            return true;
        }
        let frames = blocks.iter().flat_map(ClosedBlock::frames);
        let frames: Vec<Option<u64>> = frames.map(|frame| frame.map(|pfn| pfn.get())).collect();
        let first = frames.first().copied().flatten();
        first.map_or(frames.len() <= 1, |first| {
            let run = (0..).map(|nth| Some(first + nth * each));
            first % align == 0 && frames.iter().copied().eq(run.take(frames.len()))
        })
    }

    /// Sets memory aside that the user is charged for, and answers.
    fn promise(
        &mut self,
        key: usize,
        (call, wish): (u32, &Wish),
        (pages, align): (Pages, Pages),
    ) -> Result<(), ReserveError> {
        let bytes = pages.bytes(glebe::page_size()).get();
        let run = Run::new(pages).align(align);
        let run = if wish.flags.contiguous { run } else { run.any() };
        let promise = ClosedBlock::promise(&self.reserve, run).or_else(|_| {
            let _filling = self.kept.filling();
            ClosedBlock::reopen(self.kept.stock().take_all());
            self.since.get_or_insert_with(Instant::now);
            ClosedBlock::promise(&self.reserve, run)
        })?;
        let Some(lease) = self.entry(key, wish, bytes, Held::Promised(promise)) else {
            return Ok(());
        };
        let number = self.leases.add(lease);
        if self.answer(key, call, number, Answer::Promised { bytes }).is_err() {
            self.close(key);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, key: usize, call: u32, number: u64) -> Result<(), Refusal> {
        let is_promise = self.leases.of(key, number).is_some_and(|lease| lease.is_promise());
        let lease = is_promise.then(|| self.leases.remove(number)).flatten();
        let Some(Lease { held: Held::Promised(promise), bytes, flags, name, .. }) = lease else {
            let text = format!("no promise has the number {number}");
            return Err(Refusal { errno: Errno::INVAL, limit: 0, text });
        };
        let wish = Wish { bytes, flags, name, ..Wish::default() };
        let uid = self.conns.get(key).map(|conn| conn.uid);
        uid.into_iter().for_each(|uid| self.users.take(uid, bytes, Kind::of(flags)));
        let found = Found::Placed(vec![promise]);
        self.lend(key, call, &wish, (bytes, found)).map_err(|refusal| {
            self.undo(key, bytes, Kind::of(flags));
            let text = format!("the promise could not be kept: {}", refusal.text);
            Refusal { errno: Errno::IO, limit: 0, text }
        })
    }
}

/// Sets bricks aside one by one; `None` if there are fewer than `count`.
fn pieces(reserve: &Reserve, count: usize) -> Option<Vec<Promise>> {
    let one = || ClosedBlock::promise(reserve, Run::new(Pages::new(1)).any()).ok();
    let pieces: Vec<Promise> = std::iter::from_fn(one).take(count).collect();
    (pieces.len() == count).then_some(pieces)
}

/// Returns the most files of a message that has all their frames.
fn files_a_message(pages: usize) -> usize {
    FILES_MAX.min(FRAMES_MAX / pages.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_frames_of_its_files() {
        let of = |pages| files_a_message(pages);
        assert_eq!([1, 16, 17, 4096, 8192].map(of), [253, 253, 240, 1, 1]);
    }
}
