//! Zstandard frames without magic number, length and checksum. Source: zstd.h.
//!
//! [`Contexts`] keeps contexts, because making one costs more than compressing a page.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use super::Zstd;
use crate::error::CodecError;
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, Ordering};

#[derive(Debug)]
pub(super) struct Contexts {
    how: Zstd,
    coders: Mutex<Vec<Coding>>,
    decoders: Mutex<Vec<Decoding>>,
    /// Bytes of all contexts ever made.
    bytes: AtomicU64,
}

struct Coding(CCtx<'static>, usize);
struct Decoding(DCtx<'static>, usize);

impl std::fmt::Debug for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Coding")
    }
}

impl std::fmt::Debug for Decoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoding")
    }
}

pub(super) fn bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

impl Contexts {
    /// Makes one context of each kind, so that a single thread never lacks either.
    pub(super) fn new(how: Zstd, page: usize) -> Result<Self, CodecError> {
        let (given, min, max) = (how.level, zstd_safe::min_c_level(), zstd_safe::max_c_level());
        if !(min..=max).contains(&given) {
            return Err(CodecError::Level { given, min, max });
        }
        let (coders, decoders) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let contexts = Self { how, coders, decoders, bytes: AtomicU64::new(0) };
        let (object, mut coded) = (vec![0; page], vec![0; bound(page)]);
        let len = contexts.encode(&object, &mut coded);
        let len = len.ok_or(CodecError::NoMemory { what: "coding context" })?;
        let mut back = object;
        let _ = contexts.decode(&coded[..len], &mut back)?;
        Ok(contexts)
    }

    fn count(&self, was: &mut usize, is: usize) {
        if *was != is {
            let more = (is as u64).wrapping_sub(*was as u64);
            self.bytes.fetch_add(more, Ordering::Relaxed);
            *was = is;
        }
    }

    fn coding(&self) -> Option<Coding> {
        let mut context = CCtx::try_create()?;
        let set = [
            CParameter::CompressionLevel(self.how.level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
        ];
        for parameter in set {
            context.set_parameter(parameter).ok()?;
        }
        Some(Coding(context, 0))
    }

    fn decoding(&self) -> Option<Decoding> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(Decoding(context, 0))
    }

    pub(super) fn encode(&self, object: &[u8], out: &mut [u8]) -> Option<usize> {
        let idle = lock(&self.coders).pop();
        let mut context = idle.or_else(|| self.coding())?;
        let len = context.0.compress2(out, object).ok();
        let is = context.0.sizeof();
        self.count(&mut context.1, is);
        lock(&self.coders).push(context);
        len
    }

    pub(super) fn decode(
        &self,
        coded: &[u8],
        out: &mut [u8],
    ) -> Result<Result<usize, &'static str>, CodecError> {
        let idle = lock(&self.decoders).pop();
        let context = idle.or_else(|| self.decoding());
        let mut context = context.ok_or(CodecError::NoMemory { what: "decoding context" })?;
        let made = context.0.decompress(out, coded);
        let is = context.0.sizeof();
        self.count(&mut context.1, is);
        lock(&self.decoders).push(context);
        Ok(made.map_err(zstd_safe::get_error_name))
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
