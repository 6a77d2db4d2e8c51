//! [`Running`] is a daemon on a small reserve of its own.

use std::path::PathBuf;
use std::time::Duration;

use glebe::contig::{self, Contig, Error};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::{Bytes, PageSize};
use glebe_cache::{CacheError, SharedCache};
use glebe_lease::wire::{Flags, Name};
use glebe_lease::{Client, LeaseError, Wish};
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;
use glebed::{Daemon, Settings};

/// Names the size of bricks in MiB.
pub const MIB: &str = "GLEBE_TEST_BRICK_MIB";

/// Returns the bytes of a brick.
pub fn brick() -> u64 {
    std::env::var(MIB).map_or(2, |mib| mib.parse().unwrap()) << 20
}

pub const PATIENCE: Duration = Duration::from_secs(10);

/// Returns a reserve, or prints why this machine has no memory for it.
pub fn reserve(bricks: u64, room: u64) -> Option<Reserve> {
    reserve_of(Contig::options(), bricks, room)
}

fn reserve_of(memory: contig::Options, bricks: u64, room: u64) -> Option<Reserve> {
    let memory = memory.bricks_of(PageSize::new(brick()).unwrap());
    let options = Reserve::options().memory(memory).room(Bytes::new(room * brick()));
    match options.build(Bytes::new(bricks * brick())) {
        Ok(reserve) => Some(reserve),
        Err(ReserveError::Contig(
            error @ (Error::PoolShort { .. }
            | Error::TooLarge { .. }
            | Error::NoSuchSize { .. }
            | Error::CgroupLimit { .. }),
        )) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub struct Running {
    pub daemon: Option<Daemon>,
    pub reserve: Reserve,
    pub path: PathBuf,
    _turn: Option<Turn>,
    _scratch: Scratch,
}

impl Running {
    /// Starts a daemon, or prints why this machine has no memory for it.
    pub fn new(bricks: u64, settings: Settings) -> Option<Self> {
        Self::with_room(bricks, bricks, settings)
    }

    pub fn with_room(bricks: u64, room: u64, settings: Settings) -> Option<Self> {
        Self::of(Contig::options(), (bricks, room), settings)
    }

    pub fn of(
        memory: contig::Options,
        (bricks, room): (u64, u64),
        settings: Settings,
    ) -> Option<Self> {
        let (turn, scratch) = (Turn::alone(POOL), Scratch::new("glebed"));
        let reserve = reserve_of(memory, bricks, room)?;
        let path = scratch.path().join("leases");
        let settings = Settings { path: path.clone(), ..settings };
        let daemon = Some(Daemon::start(&reserve, settings).unwrap());
        Some(Self { daemon, reserve, path, _turn: turn, _scratch: scratch })
    }

    /// Returns a client that does not wait for memory on its way.
    pub fn client(&self) -> Client {
        Client::connect_to(&self.path, "test").unwrap().patience(Duration::ZERO)
    }

    /// Waits until nobody holds a page, and all that was lent is back.
    pub fn wait_until_all_is_back(&self) {
        let client = self.client();
        let is_back = || {
            let stats = client.stats().unwrap();
            ["held_bytes", "returning_bytes", "promised_bytes"].iter().all(|name| {
                let line = format!("glebe_lease_{name} 0\n");
                stats.contains(&line)
            })
        };
        wait_until("all memory is back", PATIENCE, is_back);
    }
}

/// Repeats a call until the daemon answers. A cache waits 200 ms at most, and a busy machine may
/// stop the daemon for longer.
pub fn answered<T>(mut call: impl FnMut() -> Result<T, CacheError>) -> Result<T, CacheError> {
    let mut answer = None;
    wait_until("the daemon answers", PATIENCE, || {
        let called = call();
        let is_silent = matches!(called, Err(CacheError::Lease(LeaseError::Silent { .. })));
        answer = Some(called);
        !is_silent
    });
    answer.unwrap()
}

/// Stores a value for which there is memory.
pub fn put(cache: &SharedCache, key: &[u8], value: &[u8]) {
    wait_until("the value is stored", PATIENCE, || cache.put(key, value).unwrap());
}

pub fn settings(zeroed_bricks: u64) -> Settings {
    Settings { zeroed: Bytes::new(zeroed_bricks * brick()), ..Settings::default() }
}

pub fn wish(bricks: u64, flags: Flags) -> Wish {
    Wish { bytes: bricks * brick(), flags, name: Name::new("wished"), ..Wish::default() }
}

pub const CONTIGUOUS: Flags = Flags { contiguous: true, one_file: false, revocable: false };
pub const ONE_FILE: Flags = Flags { contiguous: false, one_file: true, revocable: false };
pub const REVOCABLE: Flags = Flags { contiguous: false, one_file: false, revocable: true };
