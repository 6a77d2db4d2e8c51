//! [`Leases`] is the table of leases and promises.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use glebe::internal::ClosedBlock;
use glebe::reserve::Promise;
use glebe_lease::wire::{Flags, Name};
use glebe_lease::Row;

use crate::quota::Kind;

#[derive(Debug)]
pub(crate) enum Held {
    Given(Vec<ClosedBlock>),
    Promised(Promise),
    /// Files of an earlier daemon, whose pages are no part of the reserve.
    Adopted(Vec<OwnedFd>),
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) conn: usize,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    pub(crate) held: Held,
    pub(crate) bytes: u64,
    pub(crate) flags: Flags,
    pub(crate) name: Name,
    /// When the lease ends, after a recall.
    pub(crate) until: Option<Instant>,
    /// Name in the service manager's store.
    pub(crate) stored: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    last: u64,
    /// Leases that were asked back.
    recalled: usize,
    all: BTreeMap<u64, Lease>,
}

impl Lease {
    pub(crate) fn files(&mut self) -> Vec<BorrowedFd<'_>> {
        match &mut self.held {
            Held::Given(blocks) => blocks.iter_mut().flat_map(ClosedBlock::give).collect(),
            Held::Promised(_) | Held::Adopted(_) => Vec::new(),
        }
    }

    /// Returns the frames, `u64::MAX` for a hidden one.
    pub(crate) fn frames(&self) -> Vec<u64> {
        let of = |block: &ClosedBlock| -> Vec<u64> {
            block.frames().map(|frame| frame.map_or(u64::MAX, |pfn| pfn.get())).collect()
        };
        match &self.held {
            Held::Given(blocks) => blocks.iter().flat_map(of).collect(),
            Held::Promised(_) | Held::Adopted(_) => Vec::new(),
        }
    }

    fn is_revocable(&self) -> bool {
        self.flags.revocable && matches!(self.held, Held::Given(_))
    }

    /// Returns what the lease counts as.
    pub(crate) fn kind(&self) -> Kind {
        Kind { is_promise: self.is_promise(), ..Kind::of(self.flags) }
    }

    pub(crate) fn is_promise(&self) -> bool {
        matches!(self.held, Held::Promised(_))
    }
}

impl Leases {
    pub(crate) fn add(&mut self, lease: Lease) -> u64 {
        self.last += 1;
        self.all.insert(self.last, lease);
        self.last
    }

    /// Enters a lease of an earlier daemon. Later leases have higher numbers.
    pub(crate) fn adopt(&mut self, number: u64, lease: Lease) {
        self.last = self.last.max(number);
        self.all.insert(number, lease);
    }

    /// Returns a lease of the connection.
    pub(crate) fn of(&mut self, conn: usize, number: u64) -> Option<&mut Lease> {
        self.all.get_mut(&number).filter(|lease| lease.conn == conn)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Lease> {
        let lease = self.all.remove(&number)?;
        self.recalled -= usize::from(lease.until.is_some());
        Some(lease)
    }

    pub(crate) fn remove_all(&mut self, conn: usize) -> Vec<Lease> {
        let of = |(number, lease): (&u64, &Lease)| (lease.conn == conn).then_some(*number);
        let numbers: Vec<u64> = self.all.iter().filter_map(of).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    pub(crate) fn count(&self, conn: usize) -> usize {
        self.all.values().filter(|lease| lease.conn == conn).count()
    }

    /// Returns the rows of `uid` from a number on; all rows for root.
    pub(crate) fn rows(&self, uid: u32, from: u64, most: usize) -> Vec<Row> {
        let own = self.all.range(from..).filter(|(_, lease)| uid == 0 || lease.uid == uid);
        let row = |(number, lease): (&u64, &Lease)| Row {
            lease: *number,
            bytes: lease.bytes,
            uid: lease.uid,
            pid: lease.pid,
            flags: lease.flags,
            is_cache: false,
            name: lease.name,
        };
        own.map(row).take(most).collect()
    }

    /// Returns the bytes of leases or promises.
    pub(crate) fn bytes(&self, promised: bool) -> u64 {
        self.all.values().filter(|it| it.is_promise() == promised).map(|it| it.bytes).sum()
    }

    /// Returns the bytes of leases that can be recalled, or were.
    pub(crate) fn revocable_bytes(&self) -> u64 {
        self.all.values().filter(|it| it.is_revocable()).map(|it| it.bytes).sum()
    }

    /// Asks for revocable leases until they have `bytes`, the longest first. Returns the new ones.
    pub(crate) fn recall(&mut self, bytes: u64, until: Instant) -> Vec<(u64, usize)> {
        let revocable = self.all.iter_mut().filter(|(_, it)| it.is_revocable());
        let mut revocable: Vec<(&u64, &mut Lease)> = revocable.collect();
        revocable.sort_by_key(|(_, lease)| (lease.until.is_none(), std::cmp::Reverse(lease.bytes)));
        let (mut missing, mut asked) = (bytes, Vec::new());
        for (number, lease) in revocable {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(lease.bytes);
            if lease.until.is_none() {
                lease.until = Some(until);
                self.recalled += 1;
                asked.push((*number, lease.conn));
            }
        }
        asked
    }

    pub(crate) fn next_end(&self) -> Option<Instant> {
        match self.recalled {
            0 => None,
            _ => self.all.values().filter_map(|lease| lease.until).min(),
        }
    }

    pub(crate) fn ended(&self, now: Instant) -> Vec<u64> {
        let ended = self.all.iter().filter(|(_, it)| it.until.is_some_and(|until| until <= now));
        ended.map(|(number, _)| *number).collect()
    }
}
