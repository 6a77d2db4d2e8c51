//! [`Zstd`]: how zstd codes; [`Dictionary`]: what the objects of a pool have in common.
//!
//! The number of a dictionary is made a small one, since it stands in every object coded with it.
//! Source: the Zstandard format, "Dictionary Format"; zdict.h.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "zstd")]
use crate::zpool::error::CodecError;

/// The level that codes a page four times as small as it was at LZ4's pace divided by three.
const LEVEL: i32 = 1;
/// The first bytes of a dictionary: a fixed word, then its number.
#[cfg(feature = "zstd")]
const MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();
#[cfg(feature = "zstd")]
const HEAD: usize = 8;
/// More bytes than the coding tables in a dictionary take.
#[cfg(feature = "zstd")]
const TABLES: usize = 1 << 10;

/// How zstd codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zstd {
    pub(super) level: i32,
    pub(super) dictionary: Option<Dictionary>,
}

impl Default for Zstd {
    fn default() -> Self {
        Self::new(LEVEL)
    }
}

impl Zstd {
    /// At a level of zstd's own; higher is smaller and slower, below zero quicker.
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self { level, dictionary: None }
    }

    /// With what the objects have in common.
    #[must_use]
    pub fn dictionary(self, dictionary: Dictionary) -> Self {
        Self { dictionary: Some(dictionary), ..self }
    }
}

/// What objects have in common, made from samples of them, with the feature `zstd`. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Dictionary {
    bytes: Arc<[u8]>,
}

#[cfg(feature = "zstd")]
impl Dictionary {
    /// Makes a dictionary of at most `size` bytes from samples: some hundred times its size of
    /// them, for a good one. Takes seconds for megabytes.
    ///
    /// # Errors
    /// [`CodecError::Training`] if there are too few or too short samples, or `size` is too
    /// small.
    pub fn train<S: AsRef<[u8]>>(samples: &[S], size: usize) -> Result<Self, CodecError> {
        let sizes: Vec<usize> = samples.iter().map(|sample| sample.as_ref().len()).collect();
        let mut all = Vec::with_capacity(sizes.iter().sum());
        samples.iter().for_each(|sample| all.extend_from_slice(sample.as_ref()));
        let refused =
            |what| CodecError::Training { size, samples: samples.len(), bytes: all.len(), what };
        if samples.is_empty() {
            return Err(refused("nothing to learn from"));
        }
        // No longer than what it is learnt from, whatever the caller has room for.
        let mut bytes = vec![0; size.min(all.len().saturating_add(TABLES))];
        let made = zstd_safe::train_from_buffer(&mut bytes[..], &all, &sizes);
        let len = made.map_err(|code| refused(zstd_safe::get_error_name(code)))?;
        bytes.truncate(len);
        let sum = bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_mul(31) + u32::from(byte));
        // One byte in each object; zero would mean none.
        let number = sum % u32::from(u8::MAX) + 1;
        bytes[MAGIC.len()..HEAD].copy_from_slice(&number.to_le_bytes());
        Self::from_bytes(bytes)
    }

    /// A dictionary that was made before.
    ///
    /// # Errors
    /// [`CodecError::Dictionary`].
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, CodecError> {
        let bytes = bytes.into();
        let refused = |what| CodecError::Dictionary { len: bytes.len(), what };
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) || bytes.len() <= HEAD {
            return Err(refused("it does not begin as one"));
        }
        if zstd_safe::get_dict_id_from_dict(&bytes).is_none() {
            return Err(refused("it has no number"));
        }
        if zstd_safe::CDict::try_create(&bytes, zstd_safe::CLEVEL_DEFAULT).is_none() {
            return Err(refused("its tables are damaged"));
        }
        Ok(Self { bytes })
    }
}

impl Dictionary {
    /// The bytes, to be kept and given to [`Dictionary::from_bytes`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary {{ {} bytes }}", self.bytes.len())
    }
}
