//! [`Request`] is a request of memcached's binary protocol. The server refuses every such request.
//!
//! ```text
//! byte      0     1        2    4       5     6          8     12      16
//! request   0x80  command  key  extras  type  partition  body  opaque  cas
//! answer    0x81  command  key  extras  type  status     body  opaque  cas
//! ```
//!
//! Numbers are big endian. `key`, `extras` and `body` are lengths in bytes. Source:
//! protocol_binary.h.

/// Bytes of a request before its body.
pub const HEAD: usize = 24;
/// First byte of a request. No text command begins with it.
pub(super) const REQUEST: u8 = 0x80;
const ANSWER: u8 = 0x81;
const UNKNOWN_COMMAND: [u8; 2] = [0, 0x81];
const WHY: &[u8] = b"the binary protocol is not spoken here";

/// A request whose body the caller must skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    command: u8,
    /// Bytes of the body.
    pub body: u32,
    opaque: [u8; 4],
}

impl Request {
    pub(super) fn of(head: &[u8; HEAD]) -> Self {
        let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        Self { command: head[1], body: u32::from_be_bytes(word(8)), opaque: word(12) }
    }

    /// Appends the refusal.
    pub fn refuse(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[ANSWER, self.command, 0, 0, 0, 0]);
        out.extend_from_slice(&UNKNOWN_COMMAND);
        out.extend_from_slice(&(WHY.len() as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(WHY);
    }
}
