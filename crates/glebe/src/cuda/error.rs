//! [`CudaError`] is the reason why a call failed.

use crate::reserve::ReserveError;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::units::Bytes;

/// A call that the CUDA runtime refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed{}: {text} (error {code})", of(.piece))]
#[non_exhaustive]
pub struct CudaFailure {
    /// Name of the function.
    pub call: &'static str,
    /// CUDA's error code.
    pub code: i32,
    /// CUDA's text for the code.
    pub text: String,
    /// Offset and length of the piece in the memory, if the call was about one.
    pub piece: Option<(Bytes, Bytes)>,
}

fn of(piece: &Option<(Bytes, Bytes)>) -> String {
    let of = |(offset, len): &(Bytes, Bytes)| {
        format!(" for the piece of {} bytes at offset {}", len.get(), offset.get())
    };
    piece.as_ref().map_or_else(String::new, of)
}

/// [`CudaError`] is the reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No CUDA runtime can be loaded.
    #[error("the CUDA runtime, {asked}, cannot be loaded: {why}")]
    NoRuntime {
        /// Names or path of the library.
        asked: String,
        /// The loader's reason.
        why: String,
    },
    /// The library lacks a function of the CUDA runtime.
    #[error("{asked} lacks a function that glebe needs: {why}")]
    NotARuntime {
        /// Names or path of the library.
        asked: String,
        /// The loader's reason.
        why: String,
    },
    /// The piece is not a power of two, or too short or long.
    #[error(
        "pieces of {} bytes: the length must be a power of two from {} to {} bytes",
        .given.get(), .least.get(), .most.get()
    )]
    BadPiece {
        /// Length given.
        given: Bytes,
        /// The page size.
        least: Bytes,
        /// Length that all drivers accept.
        most: Bytes,
    },
    /// No device was named.
    #[error("name at least one GPU; without `devices()`, the current one is used")]
    NoDevices,
    /// Some of the pages have no memory.
    #[error("some of the pages {given} have no memory; {} bytes have", .total.get())]
    BadRange {
        /// Pages given.
        given: Extent,
        /// Length of the memory.
        total: Bytes,
    },
    /// CUDA refused a call.
    #[error(transparent)]
    Refused(#[from] CudaFailure),
    /// The registration was cancelled before the pages were registered.
    #[error(
        "the registration was cancelled: {} of {} bytes are registered", .ready.get(), .total.get()
    )]
    Cancelled {
        /// Bytes that are registered.
        ready: Bytes,
        /// Bytes to register.
        total: Bytes,
    },
    /// The memory is registered already.
    #[error("the memory is registered already: close that registration first")]
    Registered,
    /// The registration's thread panicked. The memory stays mapped until the process ends.
    #[error(
        "the thread of the registration panicked: its memory stays mapped until the process ends"
    )]
    Panicked,
    /// The registration was closed.
    #[error("the registration was closed before")]
    Closed,
    /// The caller is a forked child.
    #[error("this process was forked: the memory belongs to its parent")]
    Forked,
    /// The reserve refused a call.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
