//! Encodes and decodes the messages. Unit: bytes.
//!
//! Decoding accepts any bytes and allocates at most what the message's length allows.

use std::fmt;

/// The protocol's version.
pub const VERSION: u16 = 1;
/// The longest message.
pub const MESSAGE_MAX: usize = 16 + 40 + FILES_MAX * FRAMES_A_FILE_MAX * 8;
/// Most descriptors of a message (SCM_MAX_FD).
pub const FILES_MAX: usize = 253;
/// Most rows of a list's answer.
pub const ROWS_MAX: usize = 64;
/// Most frames of an answer. The frames beyond are left out.
pub const FRAMES_MAX: usize = 4096;
const FRAMES_A_FILE_MAX: usize = FRAMES_MAX.div_ceil(FILES_MAX);
const NAME_LEN: usize = 32;
const TEXT_MAX: usize = 512;
const STATS_MAX: usize = 16 << 10;

/// The name of a client or lease: up to 32 bytes of UTF-8.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Name([u8; NAME_LEN]);

impl Name {
    /// Cuts `name` to 32 bytes, at the end of a character. Control characters become `?`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (mut bytes, mut len) = ([0; NAME_LEN], 0);
        for char in name.chars().map(|char| if char.is_control() { '?' } else { char }) {
            let Some(room) = bytes.get_mut(len..len + char.len_utf8()) else { break };
            char.encode_utf8(room);
            len += char.len_utf8();
        }
        Self(bytes)
    }

    /// Returns the name without its padding.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The kind of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// One physical run.
    pub contiguous: bool,
    /// One file instead of one a brick. Its memory is zeroed at the request.
    pub one_file: bool,
    /// The daemon may take the memory back.
    pub revocable: bool,
}

impl Flags {
    fn to_bits(self) -> u32 {
        u32::from(self.contiguous) | u32::from(self.one_file) << 1 | u32::from(self.revocable) << 2
    }

    fn of_bits(bits: u32) -> Result<Self, Malformed> {
        let has = |bit: u32| bits & 1 << bit != 0;
        let flags = Self { contiguous: has(0), one_file: has(1), revocable: has(2) };
        (flags.to_bits() == bits).then_some(flags).ok_or(Malformed::Flags(bits))
    }
}

/// A request for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Bytes, rounded up to bricks.
    pub bytes: u64,
    /// Alignment of the first frame in bytes, a power of two; 0 for a brick's.
    pub align: u64,
    /// NUMA node.
    pub node: Option<u32>,
    /// Kind of lease.
    pub flags: Flags,
    /// Name for lists.
    pub name: Name,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    Hello { name: Name },
    Lease(Wish),
    Mapped,
    Release,
    Promise(Wish),
    Take,
    List,
    Stats,
    Cache { bytes: u64, name: Name },
    Place { index: u64 },
    Offer,
    Keep,
}

/// A row of the list of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The lease's number.
    pub lease: u64,
    /// Its length.
    pub bytes: u64,
    /// User of the connection.
    pub uid: u32,
    /// Process that opened the connection.
    pub pid: u32,
    /// Kind of lease.
    pub flags: Flags,
    /// True for a named cache, whose lease belongs to no process.
    pub is_cache: bool,
    /// Name of the lease, or else of the client.
    pub name: Name,
}

/// An answer or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Welcome { brick: u64, total: u64, free: u64, longest: u64 },
    Leased { bytes: u64, file: u64, page: u64, first: u32, count: u32, frames: Vec<u64> },
    Done,
    Promised { bytes: u64 },
    Listed(Vec<Row>),
    Stats(String),
    Cache { places: u64, place: u64 },
    Place { generation: u64 },
    Refused { errno: i32, limit: u64, text: String },
    Recall { milliseconds: u64 },
    Revoked,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<T> {
    /// The client's number for the call.
    pub call: u32,
    /// The lease's number, or 0.
    pub lease: u64,
    /// The rest.
    pub body: T,
}

/// A message that breaks the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Malformed {
    #[error("a message of {0} bytes, too short")]
    Short(usize),
    #[error("{0} bytes after the end of a message")]
    Long(usize),
    #[error("version {0}; this is version {VERSION}")]
    Version(u16),
    #[error("a message of the unknown kind {0:#x}")]
    Kind(u16),
    #[error("unknown flags in {0:#x}")]
    Flags(u32),
    #[error("a name that is not UTF-8, or has bytes after a zero")]
    Name,
    #[error("a text that is not UTF-8")]
    Text,
    #[error("NUMA node {0}")]
    Node(i32),
    #[error("an answer that does not belong to the call")]
    Answer,
}

struct Reader<'a> {
    all: usize,
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, left) = self.left.split_first_chunk().ok_or(Malformed::Short(self.all))?;
        self.left = left;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<Name, Malformed> {
        let name = Name(self.take()?);
        // `Name::new` would write the name in the same way.
        (Name::new(name.as_str()) == name).then_some(name).ok_or(Malformed::Name)
    }

    fn wish(&mut self) -> Result<Wish, Malformed> {
        let (bytes, align, node) = (self.u64()?, self.u64()?, self.u32()? as i32);
        let node = match node {
            -1 => None,
            node => Some(u32::try_from(node).map_err(|_| Malformed::Node(node))?),
        };
        Ok(Wish { bytes, align, node, flags: Flags::of_bits(self.u32()?)?, name: self.name()? })
    }

    fn row(&mut self) -> Result<Row, Malformed> {
        let (lease, bytes, uid, pid) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?);
        let flags = Flags::of_bits(self.u32()?)?;
        let is_cache = self.u32()? != 0;
        Ok(Row { lease, bytes, uid, pid, flags, is_cache, name: self.name()? })
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(std::mem::take(&mut self.left));
        text.map(str::to_owned).map_err(|_| Malformed::Text)
    }

    fn rest<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let mut all = Vec::new();
        while !self.left.is_empty() {
            all.push(one(self)?);
        }
        Ok(all)
    }
}

fn put_wish(out: &mut Vec<u8>, wish: &Wish) {
    out.extend(wish.bytes.to_le_bytes());
    out.extend(wish.align.to_le_bytes());
    let node = wish.node.map_or(-1, |node| i32::try_from(node).unwrap_or(i32::MAX));
    out.extend(node.to_le_bytes());
    out.extend(wish.flags.to_bits().to_le_bytes());
    out.extend(wish.name.0);
}

fn put_head(out: &mut Vec<u8>, kind: u16, call: u32, lease: u64) {
    out.clear();
    out.extend(VERSION.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(call.to_le_bytes());
    out.extend(lease.to_le_bytes());
}

fn head(bytes: &[u8]) -> Result<(u16, u32, u64, Reader<'_>), Malformed> {
    let mut reader = Reader { all: bytes.len(), left: bytes };
    match reader.u16()? {
        VERSION => {}
        other => return Err(Malformed::Version(other)),
    }
    Ok((reader.u16()?, reader.u32()?, reader.u64()?, reader))
}

fn ended<T>(reader: &Reader<'_>, message: T) -> Result<T, Malformed> {
    match reader.left.len() {
        0 => Ok(message),
        more => Err(Malformed::Long(more)),
    }
}

impl Message<Request> {
    /// Replaces `out` by the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.body {
            Request::Hello { .. } => 1,
            Request::Lease(_) => 2,
            Request::Mapped => 3,
            Request::Release => 4,
            Request::Offer => 11,
            Request::Keep => 12,
            Request::Promise(_) => 5,
            Request::Take => 6,
            Request::List => 7,
            Request::Stats => 8,
            Request::Cache { .. } => 9,
            Request::Place { .. } => 10,
        };
        put_head(out, kind, self.call, self.lease);
        match &self.body {
            Request::Hello { name } => out.extend(name.0),
            Request::Lease(wish) | Request::Promise(wish) => put_wish(out, wish),
            Request::Mapped | Request::Release | Request::Take | Request::Offer | Request::Keep => {
            }
            Request::List | Request::Stats => {}
            Request::Cache { bytes, name } => {
                out.extend(bytes.to_le_bytes());
                out.extend(name.0);
            }
            Request::Place { index } => out.extend(index.to_le_bytes()),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, call, lease, mut reader) = head(bytes)?;
        let body = match kind {
            1 => Request::Hello { name: reader.name()? },
            2 => Request::Lease(reader.wish()?),
            3 => Request::Mapped,
            4 => Request::Release,
            11 => Request::Offer,
            12 => Request::Keep,
            5 => Request::Promise(reader.wish()?),
            6 => Request::Take,
            7 => Request::List,
            8 => Request::Stats,
            9 => Request::Cache { bytes: reader.u64()?, name: reader.name()? },
            10 => Request::Place { index: reader.u64()? },
            other => return Err(Malformed::Kind(other)),
        };
        ended(&reader, Self { call, lease, body })
    }
}

impl Message<Answer> {
    /// Replaces `out` by the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.body {
            Answer::Welcome { .. } => 0x81,
            Answer::Leased { .. } => 0x82,
            Answer::Done => 0x83,
            Answer::Promised { .. } => 0x84,
            Answer::Listed(_) => 0x85,
            Answer::Stats(_) => 0x86,
            Answer::Cache { .. } => 0x87,
            Answer::Place { .. } => 0x88,
            Answer::Refused { .. } => 0xff,
            Answer::Recall { .. } => 0x41,
            Answer::Revoked => 0x42,
        };
        put_head(out, kind, self.call, self.lease);
        let mut words =
            |words: &[u64]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        match &self.body {
            Answer::Welcome { brick, total, free, longest } => {
                words(&[*brick, *total, *free, *longest]);
            }
            Answer::Leased { bytes, file, page, first, count, frames } => {
                words(&[*bytes, *file, *page, u64::from(*first) | u64::from(*count) << 32]);
                words(frames);
            }
            Answer::Promised { bytes } => words(&[*bytes]),
            Answer::Cache { places, place } => words(&[*places, *place]),
            Answer::Place { generation } => words(&[*generation]),
            Answer::Recall { milliseconds } => words(&[*milliseconds]),
            Answer::Listed(rows) => {
                words(&[rows.len() as u64]);
                for row in rows {
                    out.extend(row.lease.to_le_bytes());
                    out.extend(row.bytes.to_le_bytes());
                    let numbers = [row.uid, row.pid, row.flags.to_bits(), row.is_cache.into()];
                    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
                    out.extend(row.name.0);
                }
            }
            Answer::Refused { errno, limit, text } => {
                out.extend(errno.to_le_bytes());
                out.extend([0; 4]);
                out.extend(limit.to_le_bytes());
                out.extend(&text.as_bytes()[..text.floor(TEXT_MAX)]);
            }
            Answer::Stats(text) => out.extend(&text.as_bytes()[..text.floor(STATS_MAX)]),
            Answer::Done | Answer::Revoked => {}
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, call, lease, mut reader) = head(bytes)?;
        let body = match kind {
            0x81 => Answer::Welcome {
                brick: reader.u64()?,
                total: reader.u64()?,
                free: reader.u64()?,
                longest: reader.u64()?,
            },
            0x82 => Answer::Leased {
                bytes: reader.u64()?,
                file: reader.u64()?,
                page: reader.u64()?,
                first: reader.u32()?,
                count: reader.u32()?,
                frames: reader.rest(Reader::u64)?,
            },
            0x83 => Answer::Done,
            0x84 => Answer::Promised { bytes: reader.u64()? },
            0x85 => {
                let count = reader.u64()?;
                let rows = reader.rest(Reader::row)?;
                if rows.len() as u64 != count {
                    return Err(Malformed::Short(bytes.len()));
                }
                Answer::Listed(rows)
            }
            0x86 => Answer::Stats(reader.text()?),
            0x87 => Answer::Cache { places: reader.u64()?, place: reader.u64()? },
            0x88 => Answer::Place { generation: reader.u64()? },
            0xff => {
                let (errno, _, limit) = (reader.u32()? as i32, reader.u32()?, reader.u64()?);
                Answer::Refused { errno, limit, text: reader.text()? }
            }
            0x41 => Answer::Recall { milliseconds: reader.u64()? },
            0x42 => Answer::Revoked,
            other => return Err(Malformed::Kind(other)),
        };
        ended(&reader, Self { call, lease, body })
    }
}

trait Floor {
    fn floor(&self, most: usize) -> usize;
}

impl Floor for str {
    /// Returns the greatest character boundary up to `most`.
    fn floor(&self, most: usize) -> usize {
        (0..=most.min(self.len())).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn wish() -> impl Strategy<Value = Wish> {
        let flags = any::<[bool; 3]>();
        (any::<u64>(), any::<u64>(), proptest::option::of(0..i32::MAX as u32), flags, ".*")
            .prop_map(|(bytes, align, node, [contiguous, one_file, revocable], name)| Wish {
                bytes,
                align,
                node,
                flags: Flags { contiguous, one_file, revocable },
                name: Name::new(&name),
            })
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            ".*".prop_map(|name| Request::Hello { name: Name::new(&name) }),
            wish().prop_map(Request::Lease),
            wish().prop_map(Request::Promise),
            Just(Request::Mapped),
            Just(Request::Release),
            Just(Request::Offer),
            Just(Request::Keep),
            Just(Request::Take),
            Just(Request::List),
            Just(Request::Stats),
            (any::<u64>(), ".*")
                .prop_map(|(bytes, name)| Request::Cache { bytes, name: Name::new(&name) }),
            any::<u64>().prop_map(|index| Request::Place { index }),
        ]
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let row = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), ".*");
        let row = row.prop_map(|(lease, bytes, uid, pid, name)| {
            let flags = Flags { one_file: pid % 2 == 0, ..Flags::default() };
            Row { lease, bytes, uid, pid, flags, is_cache: uid == 0, name: Name::new(&name) }
        });
        prop_oneof![
            any::<[u64; 4]>().prop_map(|[brick, total, free, longest]| Answer::Welcome {
                brick,
                total,
                free,
                longest
            }),
            (any::<[u64; 3]>(), any::<[u32; 2]>(), vec(any::<u64>(), 0..20)).prop_map(
                |([bytes, file, page], [first, count], frames)| Answer::Leased {
                    bytes,
                    file,
                    page,
                    first,
                    count,
                    frames
                }
            ),
            vec(row, 0..5).prop_map(Answer::Listed),
            (any::<i32>(), any::<u64>(), "[^\0]{0,90}")
                .prop_map(|(errno, limit, text)| { Answer::Refused { errno, limit, text } }),
            any::<u64>().prop_map(|bytes| Answer::Promised { bytes }),
            any::<u64>().prop_map(|milliseconds| Answer::Recall { milliseconds }),
            ".*".prop_map(Answer::Stats),
            any::<[u64; 2]>().prop_map(|[places, place]| Answer::Cache { places, place }),
            any::<u64>().prop_map(|generation| Answer::Place { generation }),
            Just(Answer::Done),
            Just(Answer::Revoked),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_received(
            call in any::<u32>(),
            lease in any::<u64>(),
            request in request(),
            answer in answer(),
            cut in any::<prop::sample::Index>(),
            more in any::<u8>(),
        ) {
            let mut bytes = Vec::new();
            let sent = Message { call, lease, body: request };
            sent.encode(&mut bytes);
            prop_assert_eq!(Message::<Request>::decode(&bytes).unwrap(), sent);
            prop_assert!(Message::<Request>::decode(&bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(more);
            prop_assert!(Message::<Request>::decode(&bytes).is_err());
            let sent = Message { call, lease, body: answer };
            sent.encode(&mut bytes);
            prop_assert_eq!(Message::<Answer>::decode(&bytes).unwrap(), sent);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200), kind in 0..0x100_u16) {
            let _ = (Message::<Request>::decode(&bytes), Message::<Answer>::decode(&bytes));
            let mut whole = Vec::new();
            put_head(&mut whole, kind, 1, 2);
            whole.extend(bytes);
            if let Ok(message) = Message::<Request>::decode(&whole) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(again, whole.clone(), "one form for each message");
            }
            let _ = Message::<Answer>::decode(&whole);
        }
    }

    #[test]
    fn the_format_is_as_the_crate_says() {
        let flags = Flags { contiguous: true, one_file: false, revocable: true };
        let wish = Wish { bytes: 2 << 20, align: 0, node: None, flags, name: Name::new("a") };
        let mut bytes = Vec::new();
        Message { call: 3, lease: 0, body: Request::Lease(wish) }.encode(&mut bytes);
        let mut wanted = vec![1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        wanted.extend([0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        wanted.extend([0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0, b'a']);
        wanted.resize(16 + 24 + 32, 0);
        assert_eq!(bytes, wanted);
    }
}
