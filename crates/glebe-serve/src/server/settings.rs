//! What a server is made with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of a server; the defaults are memcached's, but for the address.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of items, of all that finds them, and of values and answers on their way.
    pub memory: u64,
    /// Bytes of one item, its key and head with it.
    pub item_max: u64,
    /// Threads that serve.
    pub threads: usize,
    /// Connections at a time.
    pub conns: usize,
    /// Whether a connection beyond them is told so; it waits otherwise.
    pub refuse_fast: bool,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
    /// Addresses to listen at.
    pub listen: Vec<SocketAddr>,
    /// A Unix socket to listen at, and its mode.
    pub unix: Option<(PathBuf, u32)>,
    /// Commands of one connection before the others have their turn.
    pub turn: usize,
    /// After so long without a command a connection is closed.
    pub idle: Option<Duration>,
    /// Whether items go for others.
    pub evict: bool,
    /// Whether `shutdown` is allowed.
    pub shutdown: bool,
    /// Whether `flush_all` is allowed.
    pub flush: bool,
    /// Whether keys may be listed, by `stats detail` too.
    pub dump: bool,
    /// What ends the beginning of a key that `stats detail` counts by; where it is given, it counts
    /// from the start.
    pub delimiter: Option<u8>,
    /// How much is told on standard error.
    pub verbose: u8,
    /// For tests: whether `debugtime` moves the clock.
    pub debug_time: bool,
    /// Whether the statistics of the reserve are served to `glebe stats`.
    pub serve_stats: bool,
    /// The control socket; beside that of the statistics without.
    pub control: Option<PathBuf>,
}

/// Commands of a turn. Ours cost far less than an event, so it is more than memcached's.
pub const TURN: usize = 1000;
/// memcached's port.
pub const PORT: u16 = 11211;

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            item_max: 1 << 20,
            threads: 4,
            conns: 1024,
            refuse_fast: true,
            backlog: 1024,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], PORT))],
            unix: None,
            turn: TURN,
            idle: None,
            evict: true,
            shutdown: false,
            flush: true,
            dump: true,
            delimiter: None,
            verbose: 0,
            debug_time: false,
            serve_stats: true,
            control: None,
        }
    }
}
