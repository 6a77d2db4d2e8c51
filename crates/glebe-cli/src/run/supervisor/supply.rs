//! [`Supply`] leases huge pages from the daemon, and frees them into the machine's pool.
//!
//! A hole in a lease's file frees the pages. The lease goes on, so the daemon counts them, and
//! takes pages of the pool back when it ends. Pages that the kernel added beyond the pool's own
//! (surplus pages) leave the pool when they are freed. Root prevents that until the call has its
//! pages ([`Keeping`]); others get no such pages.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glebe::contig::internal::Keeping;
use glebe::internal::sys::errno::EACCES;
use glebe::internal::sys::machine::hugetlb::{Pool, PoolCounts};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::memory::direct_segments as segments;
use glebe::internal::sys::processes::seccomp::HeldCall;
use glebe::units::{Bytes, PageSize};
use glebe_lease::internal::{release_late, PartLease};
use glebe_lease::wire::Name;
use glebe_lease::{Client, Flags, LeaseError, Wish};
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;
use rustix::process::{test_kill_process, Pid};

use super::super::NotRun;
use super::Wishes;

/// Page of the daemon's files.
const PAGE: PageSize = PageSize::new(2 << 20).unwrap();
/// Longest wait for a daemon that does not answer.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest wait for another process that changes the pools.
const POOLS: Duration = Duration::from_secs(5);

/// What a call got.
#[derive(Debug, PartialEq, Eq)]
pub enum Supplied {
    Leased(Bytes),
    /// The pool had enough free pages.
    Free,
    /// The call makes no segment.
    LookUp,
    Refused(String),
}

impl fmt::Display for Supplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leased(bytes) => write!(f, "{bytes} leased"),
            Self::Free => f.write_str("free pages of the pool"),
            Self::LookUp => f.write_str("a look-up"),
            Self::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

pub struct Supply {
    name: String,
    quota: Option<Bytes>,
    node: Option<u32>,
    socket: PathBuf,
    pool: Pool,
    /// Page of calls that name none.
    default_page: Option<PageSize>,
    /// The connection holds all leases.
    client: Option<Client>,
    /// Connections that have ended. A restarted daemon may have adopted their leases, and ends a
    /// lease when its connection closes.
    earlier: Vec<Client>,
    /// A lease that failed after the daemon had granted it. `close` gives it back.
    unused: Option<PartLease>,
    leased: Bytes,
    /// Free pages that belong to calls which reserve none, or whose thread is unknown.
    unreserved: u64,
    /// Free pages that belong to a call which has not reserved them yet, by its thread.
    late: HashMap<u32, u64>,
    /// The pool's available pages before the call that goes on now.
    available: u64,
    keeping: Option<Arc<Keeping>>,
}

impl Supply {
    pub fn new(name: &str, wishes: &Wishes) -> Result<Self, NotRun> {
        let lacks =
            || NotRun::refused(format!("the kernel has no pool of pages of {}", PAGE.bytes()));
        let default = meminfo::read("Hugepagesize").ok();
        Ok(Self {
            name: name.to_owned(),
            quota: wishes.quota.map(Bytes::new),
            node: wishes.node,
            socket: wishes.socket.clone(),
            pool: Pool::of(PAGE).ok_or_else(lacks)?,
            default_page: default.and_then(|bytes| PageSize::new(bytes.get())),
            client: None,
            earlier: Vec::new(),
            unused: None,
            leased: Bytes::ZERO,
            unreserved: 0,
            late: HashMap::new(),
            available: 0,
            keeping: None,
        })
    }

    pub fn connect(&mut self) -> Result<(), String> {
        if self.client.is_none() {
            let client = Client::connect_within(&self.socket, &self.name, SILENCE);
            self.client = Some(client.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Returns the connection. It is readable once it has ended, or the daemon answers late.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().map(AsFd::as_fd)
    }

    /// Gives back what the daemon granted to calls that waited no longer.
    pub fn release_late(&mut self) {
        let ended = self.client.take_if(|client| release_late(client).is_err());
        self.earlier.extend(ended);
    }

    /// Sees that the pool has free pages for a call, as far as the daemon lends them. Call
    /// [`Supply::close`] once the call has its pages.
    pub fn supply(&mut self, held: &HeldCall) -> Supplied {
        self.leased_for(held).unwrap_or_else(Supplied::Refused)
    }

    fn leased_for(&mut self, held: &HeldCall) -> Result<Supplied, String> {
        self.available = 0;
        // A thread has one call at a time, so its last one is over.
        self.late.remove(&held.thread);
        if is_look_up(held) {
            return Ok(Supplied::LookUp);
        }
        let page = held.page.or(self.default_page);
        if page != Some(PAGE) {
            return Err(format!("the daemon has pages of {} only", PAGE.bytes()));
        }
        let counts = self.counts()?;
        self.available = counts.available();
        let wanted = pages(held);
        let missing = wanted - self.free(held).min(wanted);
        Ok(match missing {
            0 => Supplied::Free,
            _ => Supplied::Leased(self.lease(held, missing, &counts)?),
        })
    }

    /// Returns the free pages that the call may take.
    fn free(&mut self, held: &HeldCall) -> u64 {
        match held.reserves {
            true => {
                self.late.retain(|thread, _| exists(*thread));
                let late: u64 = self.late.values().sum();
                self.available.saturating_sub(self.unreserved + late)
            }
            // A later call might take them first.
            false => 0,
        }
    }

    fn lease(
        &mut self,
        held: &HeldCall,
        missing: u64,
        counts: &PoolCounts,
    ) -> Result<Bytes, String> {
        let wanted = Bytes::new(missing.saturating_mul(PAGE.bytes().get()));
        if let Some(quota) = self.quota {
            if self.leased.get().saturating_add(wanted.get()) > quota.get() {
                return Err(format!("beyond --quota {quota}"));
            }
        }
        let is_kept = self.pool.is_writable() && held.reserves;
        if !is_kept && self.leaves(counts)? {
            return Err(format!(
                "the pool has {} surplus pages, so freed pages would leave it (let root add pages \
                 by `glebe contig reserve` before the daemon starts)",
                counts.surplus
            ));
        }
        let (lease, file, bytes) = self.file(wanted)?;
        // If a step below fails, `close` gives the lease back.
        self.unused = Some(lease);
        // After the lease, because the daemon changes the pool for that.
        self.keeping = match is_kept {
            true => Keeping::of(PAGE, POOLS).map_err(|error| error.to_string())?,
            false => None,
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, 0, bytes.get()).map_err(|error| format!("fallocate: {error}"))?;
        self.available = self.counts()?.available();
        if let Some(lease) = self.unused.take() {
            lease.leave();
        }
        self.leased = self.leased + bytes;
        Ok(bytes)
    }

    /// Returns true if freed pages would leave the pool, and the kernel would add none instead.
    fn leaves(&self, counts: &PoolCounts) -> Result<bool, String> {
        let limit = self.pool.overcommit().map_err(|error| error.to_string())?;
        Ok(counts.surplus > limit)
    }

    /// Leases one file.
    fn file(&mut self, bytes: Bytes) -> Result<(PartLease, File, Bytes), String> {
        self.connect()?;
        let Some(client) = &self.client else { return Err("no connection".to_owned()) };
        let name = Name::new(&self.name);
        let flags = Flags { one_file: true, ..Flags::default() };
        let wish = Wish { bytes: bytes.get(), node: self.node, flags, name, ..Wish::default() };
        let mut got = None;
        let lease = PartLease::take(client, wish, |mut part| {
            got = part.files.pop().map(|file| (file, part.bytes));
            Ok(())
        });
        let lease = lease.map_err(|error| {
            // The next call connects to the next daemon.
            if !matches!(error, LeaseError::Refused { .. } | LeaseError::Silent { .. }) {
                self.earlier.extend(self.client.take());
            }
            error.to_string()
        })?;
        let (file, bytes) = got.ok_or("the daemon sent no file")?;
        Ok((lease, file, bytes))
    }

    /// Returns true if the pool suffices for a call without the daemon.
    pub fn suffices(&self, held: &HeldCall) -> bool {
        let Ok(counts) = self.counts() else { return false };
        let more = self.pool.overcommit().unwrap_or(0).saturating_sub(counts.surplus);
        held.page.or(self.default_page) == Some(PAGE) && pages(held) <= counts.available() + more
    }

    /// Returns true while the pool has as many pages as before the call reserved its own.
    pub fn awaits(&self, held: &HeldCall) -> bool {
        let left = self.available.saturating_sub(pages(held));
        self.counts().is_ok_and(|counts| counts.available() > left)
    }

    /// Keeps the pages of a released call. If it was late to reserve them, they are kept until its
    /// thread makes another call, or ends. If it reserves none, or its thread is unknown, they are
    /// kept to the end.
    pub fn keep_for(&mut self, held: &HeldCall) {
        match held.thread {
            1.. if held.reserves => _ = self.late.insert(held.thread, pages(held)),
            _ => self.unreserved += pages(held),
        }
    }

    /// Lets others change the pool again.
    pub fn close(&mut self) {
        self.keeping = None;
        // Only after the call went on, because the call could otherwise take pages that the daemon
        // is about to take back.
        self.unused = None;
    }

    fn counts(&self) -> Result<PoolCounts, String> {
        self.pool.counts().map_err(|error| error.to_string())
    }
}

/// Returns true if the call makes no segment, because it only looks one up, or finds one.
fn is_look_up(held: &HeldCall) -> bool {
    let Some(key) = held.key else { return false };
    !held.creates || matches!(segments::shmget(key, 0, 0), Ok(_) | Err(EACCES))
}

/// Returns true if a thread has not ended, or nobody has reaped its process. The kernel takes the
/// number as it tells it of a held call: in this process's PID namespace, which `/proc` may not
/// show.
fn exists(thread: u32) -> bool {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    thread.is_some_and(|thread| test_kill_process(thread) != Err(Errno::SRCH))
}

fn pages(held: &HeldCall) -> u64 {
    held.len.get().div_ceil(PAGE.bytes().get())
}
