//! [`State`] is everything that the process has leased. One lock guards it, with all signals
//! blocked, because a signal handler may map memory too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use glebe_lease::internal::PartLease;
use glebe_os::internal::sync::{StaticMutex, StaticMutexGuard};
use glebe_os::internal::sys::errno::{self, Kept};
use glebe_os::internal::sys::files::plain_file::{self, KeptErrors};
use glebe_os::internal::sys::processes::environment;
use glebe_os::internal::sys::processes::signals::Blocked;

use crate::counts::Counts;
use crate::files::{FileId, Files};
use crate::loan::Loan;
use crate::own_files::OwnClient;
use crate::pieces::{Piece, Pieces};
use crate::segments::Segment;
use crate::settings::{Settings, VARIABLE};

/// A lease, a view of a file or an attachment, until nothing of it is mapped.
pub(crate) struct Holding {
    pub(crate) source: Source,
    /// Bytes that are mapped.
    pub(crate) mapped: usize,
}

impl Holding {
    /// Returns the lease of a private mapping.
    pub(crate) fn private(&mut self) -> Option<&mut Private> {
        match &mut self.source {
            Source::Private(private) => Some(private),
            _ => None,
        }
    }
}

/// The lease of a private mapping.
pub(crate) struct Private {
    pub(crate) lease: PartLease,
    /// Keeps the program from closing the lease's connection.
    pub(crate) _client: OwnClient,
    pub(crate) bytes: u64,
    /// The daemon may take the memory.
    pub(crate) is_offered: bool,
}

pub(crate) enum Source {
    /// A lease of its own.
    Private(Private),
    /// A loan of its own, which forked children have too.
    Shared(Loan),
    /// A part of a file.
    File(FileId),
    /// An attached segment, whose token is attached at the address.
    Segment { base: usize, token: usize },
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) pieces: Pieces,
    /// Ranges that the daemon took, and that are zeroed memory now. `glebe_huge_keep` tells the
    /// program of them once.
    pub(crate) lost: Pieces,
    pub(crate) holdings: BTreeMap<u64, Holding>,
    pub(crate) last: u64,
    /// The connection for private mappings.
    pub(crate) client: Option<OwnClient>,
    /// The daemon did not answer once. The process asks it for no more memory.
    pub(crate) is_silent: bool,
    pub(crate) counts: Counts,
    pub(crate) segments: BTreeMap<i32, Segment>,
    pub(crate) files: Files,
    process: u32,
    errors: Option<KeptErrors>,
}

static STATE: StaticMutex<Option<State>> = StaticMutex::new(None);
/// All pieces are and were between these addresses.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// The thread that has the lock, else 0.
static OWNER: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this thread has the lock: the call is the library's own.
pub(crate) fn is_own() -> bool {
    OWNER.load(Relaxed) == errno::thread()
}

struct Owned;

impl Drop for Owned {
    fn drop(&mut self) {
        OWNER.store(0, Relaxed);
    }
}

/// The locked state. Fields drop in this order.
pub(crate) struct Locked {
    _owner: Owned,
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
    OWNER.store(errno::thread(), Relaxed);
    Locked { _owner: Owned, state, _signals: signals, _errno: errno }
}

/// Returns false if no piece was ever in the range. The library's own memory has none.
pub(crate) fn may_have(addr: usize, len: usize) -> bool {
    let may = addr < HIGHEST.load(Relaxed) && addr.saturating_add(len) > LOWEST.load(Relaxed);
    may && !is_own()
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
            lost: Pieces::new(),
            holdings: BTreeMap::new(),
            last: 0,
            client: None,
            is_silent: false,
            counts: Counts::new(),
            segments: BTreeMap::new(),
            files: Files::default(),
            process: std::process::id(),
            errors: KeptErrors::new(),
        };
        if !unknown.is_empty() {
            state.tell(&format!("{VARIABLE} has unknown words: {}", unknown.join(",")));
        }
        state
    }

    /// Returns false in a child of vfork(2), which has descriptors of its own, but the parent's
    /// memory.
    pub(crate) fn is_at_home(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn move_in(&mut self) {
        self.process = std::process::id();
    }

    pub(crate) fn add(&mut self, start: usize, piece: Piece) {
        LOWEST.fetch_min(start, Relaxed);
        HIGHEST.fetch_max(start + piece.len, Relaxed);
        self.pieces.insert(start, piece);
    }

    /// Forgets what is no longer mapped. A lease of which nothing is mapped ends.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        self.lost.take(range.clone());
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
        match holding.source {
            Source::Private(private) => self.counts.give_back(private.bytes),
            Source::Shared(loan) => self.leave(loan),
            Source::File(file) => self.unmapped_file(file),
            Source::Segment { token, .. } => self.detached(token),
        }
    }

    /// Writes a line to the standard error of the first request's time.
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
