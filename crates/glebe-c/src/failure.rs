//! [`Failure`]: what a call refuses, its code and its text.

use std::ffi::c_int;
use std::io;
use std::io::ErrorKind;

use glebe::contig;
use glebe::error::OsError;
use glebe::reserve::Error;
use glebe::sys::errno;
use glebe::{vmap, volatile, zpool};

use crate::abi::*;

/// A call that was refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("a fault inside glebe was caught: {0}")]
    Panic(String),
    #[error("this process was forked from the owner of the handle, which stayed there")]
    Forked,
    #[error("{handle:#x} is no {kind} that is open")]
    BadHandle { kind: &'static str, handle: u64 },
    #[error("the argument {0} is a null pointer")]
    Null(&'static str),
    #[error("a size of {given} for {name}: a multiple of 8 from {least} to {most} is needed")]
    BadSize { name: &'static str, given: u64, least: u64, most: u64 },
    #[error("{name} has a member that this version of glebe, which knows {known} bytes, lacks")]
    Unknown { name: &'static str, known: u64 },
    #[error("{value:#x} is no value of {name}")]
    BadArgument { name: &'static str, value: u64 },
    #[error("the name of a pool is not UTF-8")]
    BadName,
    #[error(
        "the reserve still has {blocks} blocks, {promises} promises and {pools} pools; \
        free, drop and close them first"
    )]
    Busy { blocks: usize, promises: usize, pools: usize },
    #[error("no more than {most} {what} at once")]
    TooMany { what: &'static str, most: u32 },
    #[error("{given} bytes for a bitmap of {pages} pages; {needed} are needed")]
    ShortBitmap { given: usize, pages: u64, needed: u64 },
    #[error("{given} bytes at {name}; there can be {}", isize::MAX)]
    TooManyBytes { name: &'static str, given: usize },
    #[error("room for {given} bytes of text; {needed} are needed")]
    ShortText { given: usize, needed: usize },
    #[error(
        "this thread is inside another call on volatile memory, or inside a fork, and would wait \
        for itself; a handler can map a page there instead, or glebe_volatile_refilled() refill it"
    )]
    Inside,
    #[error("the memory from {start:#x} to {end:#x} is a volatile region already")]
    Adopted { start: usize, end: usize },
    #[error("the {what} has {len}; {at} is beyond that")]
    Beyond { what: &'static str, at: u64, len: u64 },
    #[error("{0:#x} is no address of a contiguous mapping")]
    Unmapped(usize),
    #[error("a length of {given}; the mapping has {mapped}")]
    OtherLength { given: u64, mapped: u64 },
    #[error("the descriptor {fd}: {why}")]
    BadDescriptor { fd: c_int, errno: c_int, why: &'static str },
    #[error("nothing would hold the pages in their frames: {0}")]
    NotHeld(String),
    #[error(transparent)]
    Contig(#[from] contig::Error),
    #[error(transparent)]
    Reserve(#[from] Error),
    #[error(transparent)]
    View(#[from] vmap::Error),
    #[error("an extent of {len} pages at page {start}: no such pages can be")]
    BadExtent { start: u64, len: u64 },
    #[error(transparent)]
    Volatile(#[from] volatile::Error),
    #[error(transparent)]
    Zpool(#[from] zpool::Error),
}

impl Failure {
    /// The error number, for a call that tells failures as mmap(2) does.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::BadDescriptor { errno, .. } => *errno,
            Self::NotHeld(_) => errno::EPERM,
            Self::Contig(error) => match error {
                contig::Error::ZeroLength | contig::Error::BadAlign { .. } => errno::EINVAL,
                contig::Error::Os(error) if error.kind() == io::ErrorKind::TimedOut => {
                    errno::ETIMEDOUT
                }
                contig::Error::Os(error) => error.errno().unwrap_or(errno::EIO),
                _ => errno::ENOMEM,
            },
            Self::BadArgument { .. } => errno::EINVAL,
            Self::TooMany { .. } => errno::ENOMEM,
            _ => errno::EIO,
        }
    }

    /// The negative number that C gets.
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Panic(_) => GLEBE_ERROR_PANIC,
            Self::Forked => GLEBE_ERROR_FORKED,
            Self::BadHandle { .. } => GLEBE_ERROR_BAD_HANDLE,
            Self::Null(_) => GLEBE_ERROR_NULL,
            Self::BadSize { .. } => GLEBE_ERROR_BAD_SIZE,
            Self::Unknown { .. }
            | Self::BadArgument { .. }
            | Self::TooManyBytes { .. }
            | Self::BadName => GLEBE_ERROR_BAD_ARGUMENT,
            Self::Busy { .. } => GLEBE_ERROR_BUSY,
            Self::TooMany { .. } => GLEBE_ERROR_TOO_MANY,
            Self::Inside => GLEBE_ERROR_WOULD_WAIT,
            Self::Adopted { .. } => GLEBE_ERROR_ADOPTED,
            Self::ShortBitmap { .. } => GLEBE_ERROR_BAD_LEN,
            Self::ShortText { .. } => GLEBE_ERROR_BUFFER_TOO_SMALL,
            Self::Unmapped(_) => GLEBE_ERROR_UNMAPPED,
            Self::OtherLength { .. } => GLEBE_ERROR_BAD_LEN,
            Self::BadDescriptor { .. } => GLEBE_ERROR_BAD_ARGUMENT,
            Self::NotHeld(_) => GLEBE_ERROR_NO_SOURCE,
            Self::Contig(error) => code_of_contig(error),
            Self::Reserve(error) => code_of(error),
            Self::View(error) => code_of_view(error),
            Self::BadExtent { len: 0, .. } => GLEBE_ERROR_EMPTY,
            Self::BadExtent { .. } | Self::Beyond { .. } => GLEBE_ERROR_BEYOND,
            Self::Volatile(error) => code_of_volatile(error),
            Self::Zpool(error) => code_of_zpool(error),
        }
    }
}

/// The code of what the kernel refused, in whichever part.
fn code_of_os(error: &OsError) -> c_int {
    match error.kind() {
        ErrorKind::OutOfMemory => GLEBE_ERROR_NO_MEMORY,
        _ => GLEBE_ERROR_OS,
    }
}

fn code_of(error: &Error) -> c_int {
    match error {
        Error::ZeroPages => GLEBE_ERROR_ZERO_PAGES,
        Error::BadAlign { .. } => GLEBE_ERROR_BAD_ALIGN,
        Error::NoRun { .. } | Error::NoAlignedRun { .. } => GLEBE_ERROR_NO_RUN,
        Error::WouldWait => GLEBE_ERROR_WOULD_WAIT,
        Error::Forked => GLEBE_ERROR_FORKED,
        Error::BadPageLen { .. } => GLEBE_ERROR_BAD_PAGE_LEN,
        Error::BadLen { .. } => GLEBE_ERROR_BAD_LEN,
        Error::Contig(error) => code_of_contig(error),
        Error::FixedLen { .. } => GLEBE_ERROR_FIXED_LEN,
        Error::NoRoom { .. } => GLEBE_ERROR_NO_ROOM,
        Error::NotGiven { .. } => GLEBE_ERROR_NOT_GIVEN,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_view(error: &vmap::Error) -> c_int {
    use vmap::Error;
    match error {
        Error::Empty => GLEBE_ERROR_EMPTY,
        Error::Unaligned { .. } => GLEBE_ERROR_UNALIGNED,
        Error::BeyondEnd { .. } => GLEBE_ERROR_BEYOND,
        Error::ViewLimit { .. } | Error::MapCount { .. } => GLEBE_ERROR_MAP_BUDGET,
        Error::NoAddresses { .. } => GLEBE_ERROR_NO_MEMORY,
        Error::Forked => GLEBE_ERROR_FORKED,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_contig(error: &contig::Error) -> c_int {
    use contig::Error;
    match error {
        Error::ZeroLength => GLEBE_ERROR_BAD_LEN,
        Error::BadAlign { .. } => GLEBE_ERROR_BAD_ALIGN,
        Error::NoAddresses { .. } => GLEBE_ERROR_NO_MEMORY,
        Error::TooLarge { .. } | Error::CgroupLimit { .. } | Error::PoolShort { .. } => {
            GLEBE_ERROR_NO_MEMORY
        }
        Error::NoSuchSize { .. } | Error::NotHuge { .. } => GLEBE_ERROR_NO_SOURCE,
        Error::NotContiguous { .. } | Error::NotAligned { .. } => GLEBE_ERROR_NOT_CONTIGUOUS,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_volatile(error: &volatile::Error) -> c_int {
    use volatile::Error;
    match error {
        Error::Unaligned { .. } => GLEBE_ERROR_UNALIGNED,
        Error::Empty => GLEBE_ERROR_EMPTY,
        Error::Beyond { .. } => GLEBE_ERROR_BEYOND,
        Error::Marked { .. } => GLEBE_ERROR_MARKED,
        Error::Unsuitable(refusal) => code_of_refusal(refusal),
        Error::MapBudget { .. } => GLEBE_ERROR_MAP_BUDGET,
        Error::ZeroCap => GLEBE_ERROR_BAD_ARGUMENT,
        Error::SelfTest { .. } => GLEBE_ERROR_SELF_TEST,
        Error::Stuck { .. } => GLEBE_ERROR_STUCK,
        Error::HandlerCovered => GLEBE_ERROR_HANDLER_COVERED,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_refusal(refusal: &volatile::Refusal) -> c_int {
    use volatile::Refusal;
    match refusal {
        Refusal::Unmapped { .. } => GLEBE_ERROR_UNMAPPED,
        Refusal::Locked { .. } => GLEBE_ERROR_LOCKED,
        Refusal::Hugetlb { .. } => GLEBE_ERROR_HUGETLB,
        Refusal::Shared { .. } => GLEBE_ERROR_SHARED,
        Refusal::FilePrivate { .. } => GLEBE_ERROR_FILE_PRIVATE,
        Refusal::ReadOnly { .. } => GLEBE_ERROR_READ_ONLY,
        _ => GLEBE_ERROR_SPECIAL,
    }
}

fn code_of_zpool(error: &zpool::Error) -> c_int {
    use zpool::{CodecError, Error};
    match error {
        Error::Empty => GLEBE_ERROR_EMPTY,
        Error::TooLong { .. } => GLEBE_ERROR_TOO_LONG,
        Error::Stale => GLEBE_ERROR_STALE,
        Error::Foreign => GLEBE_ERROR_FOREIGN,
        Error::BufferTooSmall { .. } => GLEBE_ERROR_BUFFER_TOO_SMALL,
        Error::Full { .. } | Error::Space => GLEBE_ERROR_FULL,
        Error::LimitBelowHeld { .. } => GLEBE_ERROR_LIMIT_BELOW_HELD,
        Error::NoBudget => GLEBE_ERROR_NO_BUDGET,
        Error::Codec(CodecError::Corrupt { .. }) => GLEBE_ERROR_CORRUPT,
        Error::Codec(CodecError::NoMemory { .. }) => GLEBE_ERROR_NO_MEMORY,
        Error::Codec(CodecError::Dictionary { .. } | CodecError::Training { .. }) => {
            GLEBE_ERROR_BAD_DICTIONARY
        }
        Error::Codec(CodecError::Level { .. } | CodecError::Missing { .. }) => {
            GLEBE_ERROR_BAD_ARGUMENT
        }
        Error::Rules(_) | Error::Classes { .. } => GLEBE_ERROR_BAD_RULES,
        Error::Forked => GLEBE_ERROR_FORKED,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_memory_has_one_code_in_every_part() {
        for (number, code) in
            [(errno::ENOMEM, GLEBE_ERROR_NO_MEMORY), (errno::EPERM, GLEBE_ERROR_OS)]
        {
            let os = || OsError::new("mmap", "a page", std::io::Error::from_raw_os_error(number));
            let all: [Failure; 6] = [
                contig::Error::from(os()).into(),
                Error::from(os()).into(),
                Error::from(contig::Error::from(os())).into(),
                vmap::Error::from(os()).into(),
                volatile::Error::from(os()).into(),
                zpool::Error::from(os()).into(),
            ];
            for failure in all {
                assert_eq!(failure.code(), code, "{failure:?}");
            }
        }
    }
}
