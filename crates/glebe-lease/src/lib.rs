//! Leases of contiguous huge pages from the daemon that `glebe serve --leases` runs.
//!
//! A [`Client`] asks for memory, and gets it as open files. A [`Lease`] maps them. A lease ends
//! with its connection, so a killed process leaves nothing behind.
//!
//! ```no_run
//! use glebe_lease::{units::Bytes, Client};
//!
//! let client = Client::connect()?;
//! let lease = client.lease(Bytes::mib(64))?;
//! lease.write(Bytes::ZERO, b"hello")?;
//! println!("{} in runs of {:?}", lease.len(), lease.runs());
//! # Ok::<(), glebe_lease::LeaseError>(())
//! ```
//!
//! # The protocol
//! Both sides send datagrams over a Unix socket of type `SOCK_SEQPACKET`. Numbers are
//! little-endian. Each message begins with 16 bytes:
//!
//! ```text
//!  0        2        4                 8                                 16
//! +--------+--------+-----------------+----------------------------------+
//! |version |  kind  |      call       |              lease               |
//! |   1    |        |                 |                                  |
//! +--------+--------+-----------------+----------------------------------+
//! ```
//!
//! * `call` is the client's choice; the answer repeats it. Events have call 0.
//! * `lease` is a lease's number, or 0.
//!
//! | kind | request | after the first 16 bytes |
//! |---|---|---|
//! | 1 | hello | name (32 bytes, zero-padded UTF-8) |
//! | 2 | lease | bytes u64, align u64, node i32 (-1: any), flags u32, name |
//! | 3 | mapped | |
//! | 4 | release | |
//! | 5 | promise | as lease |
//! | 6 | take (the lease is the promise's number) | |
//! | 7 | list, from the lease's number on | |
//! | 8 | stats | |
//! | 9 | cache | bytes u64, name |
//! | 10 | place (the lease is the cache's number) | index u64 |
//! | 11 | offer | |
//! | 12 | keep | |
//!
//! | kind | answer or event | after the first 16 bytes |
//! |---|---|---|
//! | 0x81 | welcome | in bytes: brick u64, total u64, free u64, longest run u64 |
//! | 0x82 | leased, and files | bytes u64, file u64, page u64, first u32, count u32, frames |
//! | 0x83 | done | |
//! | 0x84 | promised | bytes u64 |
//! | 0x85 | listed | count u64, then rows |
//! | 0x86 | stats | OpenMetrics text, to the end |
//! | 0x87 | cache, and its control file | places u64, bytes of a place u64 |
//! | 0x88 | place, and its file | generation u64 |
//! | 0xff | refused | errno i32, 0 u32, limit u64, text (UTF-8, to the end) |
//! | 0x41 | event: recall | milliseconds u64 |
//! | 0x42 | event: revoked | |
//!
//! * A row: lease u64, bytes u64, uid u32, pid u32, flags u32, 1 for a cache u32, name.
//! * Flags: 1 one physical run, 2 one file, 4 the daemon may take the memory back.
//! * Lease: the length is rounded up to bricks.
//! * Leased: the lease is `bytes` long, in files of `file` bytes: of a brick, or all in one. A file
//!   has one or more pages of `page` bytes. A message has up to 253 descriptors: `count` files from
//!   `first` on. It has a frame (u64) for each page of them, at most 4096; `u64::MAX` if hidden.
//!   Frames of a file may be apart. Messages follow until all files are sent.
//! * Mapped: the client has mapped the files. The daemon only answers: a seal against further
//!   mappings (F_SEAL_FUTURE_WRITE) would need files that accept seals, and a client could then
//!   seal them against the daemon's cut.
//! * Offer: the lease becomes a revocable one. Keep: it is none any more; refused (ENOENT) if the
//!   daemon has asked for it, or has taken it.
//! * Cache: a user's processes that ask for one name share the cache, of the first's length. The
//!   control file has 8-byte words: 1 since a client used the cache, a random seed, then each
//!   place's generation (0: no memory). A client maps a place again when its generation changes.
//!   The daemon takes a place by setting 0 and cutting the file. Release ends the cache: all
//!   generations are 2^64 - 1, and clients open it anew.
//! * The first request is hello. After a breach of the protocol the daemon answers with refused
//!   (EPROTO) and ends the connection. A request with descriptors, or of more than 512 bytes, ends
//!   it without an answer. Too many connections of a user: refused (EDQUOT) at once,
//!   with call 1.
//! * If the daemon ends, the connection ends, also if a later daemon adopts its leases. Until the
//!   client closes it, an adopted lease lives, and the daemon obeys release (call 0).
//! * Refused: `limit` is the number that the request exceeds, for example the longest run.
//! * Recall: the memory will be taken in that time, unless released before. Revoked: the daemon is
//!   taking it.
//!
//! Source: unix(7); the design of leases by sealed memfds in vhost-user and PipeWire.

mod client;
mod connection;
mod error;
mod guard;
mod lease;
mod link;
mod parts;
mod places;
pub mod socket;
pub mod wire;

pub use client::{socket_path, Client, Promise};
pub use error::LeaseError;
pub use lease::{Lease, LeaseRun};
pub use wire::{Flags, Row, Wish};

/// For the other crates of glebe; changes without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::parts::{connect_above, free_at_connect, release_late, Part, PartLease};
    pub use crate::places::{PlaceUse, Places, ENDED};
}

#[doc(no_inline)]
pub use glebe_os::{error::OsError, units};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
