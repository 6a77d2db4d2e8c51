//! [`Settings`] configures a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use glebe::contig::Node;
use glebe::units::PageSize;

use super::Access;

/// A server's settings. The defaults are memcached's, except the address and `turn`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum bytes of items, the index, values that are being received and answers not yet taken.
    pub memory: u64,
    /// Makes the reserve of bricks of this size, so that they can be leased to other processes.
    pub brick: Option<PageSize>,
    /// Bytes that may be added to a reserve of bricks later.
    pub more: u64,
    /// The only NUMA nodes to take memory of; any if empty.
    pub nodes: Vec<Node>,
    /// Maximum bytes of an item with key and head.
    pub item_max: u64,
    /// Worker threads.
    pub threads: usize,
    /// Maximum connections.
    pub conns: usize,
    /// Refuses connections beyond `conns`. If false, such connections wait.
    pub refuse_fast: bool,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
    /// TCP addresses.
    pub listen: Vec<SocketAddr>,
    /// Path and mode of a Unix socket.
    pub unix: Option<(PathBuf, u32)>,
    /// Maximum commands per turn of a connection.
    pub turn: usize,
    /// The server closes a connection whose client, for this time, sent no command and no byte of a
    /// value, and took no byte of an answer.
    pub idle: Option<Duration>,
    /// Allows eviction.
    pub evict: bool,
    /// Allows `shutdown`.
    pub shutdown: bool,
    /// Allows `flush_all`.
    pub flush: bool,
    /// Allows listing keys, and `stats detail`.
    pub dump: bool,
    /// Delimiter of key prefixes for `stats detail`. If set, the server counts commands by prefix
    /// from its start.
    pub delimiter: Option<u8>,
    /// Verbosity of standard error.
    pub verbose: u8,
    /// Who may use the server.
    pub access: Access,
    /// For tests: `debugtime` moves the clock.
    pub debug_time: bool,
    /// Serves the reserve's statistics to `glebe stats`, and the control socket.
    pub serve_stats: bool,
    /// Path of the control socket. `None`: next to the statistics' socket.
    pub control: Option<PathBuf>,
}

/// Default of [`Settings::turn`]. Above memcached's, because a command costs far less than the
/// event that begins a turn.
pub const TURN: usize = 1000;
/// memcached's port.
pub const PORT: u16 = 11211;

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            brick: None,
            more: 0,
            nodes: Vec::new(),
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
            access: Access::default(),
            debug_time: false,
            serve_stats: true,
            control: None,
        }
    }
}
