//! [`State`] is everything that the process has leased. One lock guards it, with all signals
//! blocked, because a signal handler may map memory too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use glebe_lease::internal::PartLease;
use glebe_lease::Client;
use glebe_os::internal::sync::{StaticMutex, StaticMutexGuard};
use glebe_os::internal::sys::errno::{self, Kept};
use glebe_os::internal::sys::files::plain_file::{self, KeptErrors};
use glebe_os::internal::sys::processes::environment;
use glebe_os::internal::sys::processes::signals::Blocked;

use crate::counts::Counts;
use crate::own_files;
use crate::pieces::{Piece, Pieces};
use crate::settings::{Settings, VARIABLE};

/// A lease, while some of it is mapped.
pub(crate) struct Holding {
    pub(crate) lease: PartLease,
    pub(crate) bytes: u64,
    /// Bytes that are mapped.
    pub(crate) mapped: usize,
    /// The connection of a shared mapping's lease.
    pub(crate) own_file: Option<i32>,
    /// Forked children have copies of the connection, so the lease lasts until all have ended.
    pub(crate) is_forked: bool,
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) pieces: Pieces,
    pub(crate) holdings: BTreeMap<u64, Holding>,
    pub(crate) last: u64,
    /// The connection for private mappings.
    pub(crate) client: Option<Client>,
    /// The daemon did not answer once, so nobody waits for it again.
    pub(crate) is_silent: bool,
    pub(crate) counts: Counts,
    errors: Option<KeptErrors>,
}

static STATE: StaticMutex<Option<State>> = StaticMutex::new(None);
/// All pieces are and were between these addresses.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// The locked state. Fields drop in this order.
pub(crate) struct Locked {
    state: StaticMutexGuard<'static, Option<State>>,
    _signals: Blocked,
    _errno: Kept,
}

impl Locked {
    pub(crate) fn get(&mut self) -> &mut State {
        self.state.get_or_insert_with(State::new)
    }

    /// Returns the state if something asked for it before.
    pub(crate) fn begun(&mut self) -> Option<&mut State> {
        self.state.as_mut()
    }
}

pub(crate) fn locked() -> Locked {
    let errno = errno::keep();
    let signals = Blocked::new();
    let state = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Locked { state, _signals: signals, _errno: errno }
}

/// Returns false if no piece was ever in the range.
pub(crate) fn may_have(addr: usize, len: usize) -> bool {
    addr < HIGHEST.load(Relaxed) && addr.saturating_add(len) > LOWEST.load(Relaxed)
}

impl State {
    fn new() -> Self {
        let mut value = [0; 4000];
        let len = match environment::is_secure() {
            true => None,
            false => environment::variable(VARIABLE, &mut value),
        };
        let value = value.get(..len.unwrap_or(0)).unwrap_or_default();
        let text = String::from_utf8_lossy(value);
        let (settings, unknown) = Settings::parse(&text);
        let state = Self {
            settings,
            pieces: Pieces::new(),
            holdings: BTreeMap::new(),
            last: 0,
            client: None,
            is_silent: false,
            counts: Counts::new(),
            errors: KeptErrors::new(),
        };
        if !unknown.is_empty() {
            state.tell(&format!("{VARIABLE} has unknown words: {}", unknown.join(",")));
        }
        state
    }

    pub(crate) fn add(&mut self, start: usize, piece: Piece) {
        LOWEST.fetch_min(start, Relaxed);
        HIGHEST.fetch_max(start + piece.len, Relaxed);
        self.pieces.insert(start, piece);
    }

    /// Forgets what is no longer mapped. A lease of which nothing is mapped ends.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        for (_, piece) in self.pieces.take(range) {
            self.unmapped(piece);
        }
    }

    pub(crate) fn unmapped(&mut self, piece: Piece) {
        let Some(holding) = self.holdings.get_mut(&piece.holding) else { return };
        holding.mapped -= piece.len;
        if holding.mapped == 0 {
            self.end(piece.holding);
        }
    }

    fn end(&mut self, number: u64) {
        let Some(holding) = self.holdings.remove(&number) else { return };
        let Holding { lease, bytes, own_file, is_forked, .. } = holding;
        self.counts.give_back(bytes);
        own_file.iter().for_each(|fd| own_files::remove(*fd));
        match own_file {
            Some(_) if is_forked => lease.leave(),
            // A request by another connection could overtake this one.
            Some(_) => lease.give_back(),
            None => drop(lease),
        }
    }

    pub(crate) fn drop_client(&mut self) {
        if let Some(client) = self.client.take() {
            own_files::remove(client.as_fd().as_raw_fd());
        }
    }

    /// Writes a line to the standard error of the program's start.
    pub(crate) fn tell(&self, text: &str) {
        let mut line = String::new();
        let _ = writeln!(line, "glebe: {} ({}): {text}", name(), std::process::id());
        if let Some(file) = self.errors.as_ref().and_then(KeptErrors::file) {
            plain_file::write(&file, line.as_bytes());
        }
    }
}

/// Returns the program's name, as it was started.
pub(crate) fn name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
