//! [`Head`] precedes the key and value of an item.
//!
//! ```text
//! 0  cas 64      8  exptime 32   12  stored 32   16  flags 32   20  length 32
//! 24  key length 8
//! ```
//!
//! Little endian. Times are seconds of the store's clock.

/// An item's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// CAS number of this content.
    pub cas: u64,
    /// Expiry time; 0: never.
    pub exptime: u32,
    /// Time when the item was stored.
    pub stored: u32,
    /// Client flags.
    pub flags: u32,
    /// Bytes of the value.
    pub len: u32,
    /// Bytes of the key.
    pub key_len: u8,
}

/// Bytes of a head.
pub const HEAD: usize = 25;

impl Head {
    #[inline]
    pub(super) fn write_head(&self, to: &mut [u8]) {
        to[..8].copy_from_slice(&self.cas.to_le_bytes());
        for (at, word) in [self.exptime, self.stored, self.flags, self.len].iter().enumerate() {
            to[8 + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        to[24] = self.key_len;
    }

    /// `value` may be only the first part of the value.
    #[inline]
    pub(super) fn write(&self, to: &mut [u8], key: &[u8], value: &[u8]) {
        let (head, rest) = to.split_at_mut(HEAD);
        self.write_head(head);
        let (to_key, to_value) = rest.split_at_mut(key.len());
        to_key.copy_from_slice(key);
        to_value.copy_from_slice(value);
    }

    /// Reads a head, or returns `None` if `bytes` are shorter than head and key.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let head = Self {
            cas: u64::from_le_bytes(*bytes.first_chunk()?),
            exptime: word(8)?,
            stored: word(12)?,
            flags: word(16)?,
            len: word(20)?,
            key_len: *bytes.get(24)?,
        };
        (bytes.len() >= head.value_at()).then_some(head)
    }

    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[HEAD..self.value_at()]
    }

    pub(super) fn value_at(&self) -> usize {
        HEAD + usize::from(self.key_len)
    }

    /// Returns the bytes of the whole item.
    #[must_use]
    pub fn total(&self) -> usize {
        self.value_at() + self.len as usize
    }
}
