//! [`Failure`]: what a call refuses, its code and its text.

use std::ffi::c_int;

use glebe::contig;
use glebe::reserve::Error;
use glebe::{volatile, zpool};

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
    #[error("room for {given} bytes of text; {needed} are needed")]
    ShortText { given: usize, needed: usize },
    #[error("the memory from {start:#x} to {end:#x} is a volatile region already")]
    Adopted { start: usize, end: usize },
    #[error(transparent)]
    Reserve(#[from] Error),
    #[error(transparent)]
    Volatile(#[from] volatile::Error),
    #[error(transparent)]
    Zpool(#[from] zpool::Error),
}

impl Failure {
    /// The negative number that C gets.
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Panic(_) => GLEBE_ERROR_PANIC,
            Self::Forked => GLEBE_ERROR_FORKED,
            Self::BadHandle { .. } => GLEBE_ERROR_BAD_HANDLE,
            Self::Null(_) => GLEBE_ERROR_NULL,
            Self::BadSize { .. } => GLEBE_ERROR_BAD_SIZE,
            Self::Unknown { .. } | Self::BadArgument { .. } | Self::BadName => {
                GLEBE_ERROR_BAD_ARGUMENT
            }
            Self::Busy { .. } => GLEBE_ERROR_BUSY,
            Self::TooMany { .. } => GLEBE_ERROR_TOO_MANY,
            Self::Adopted { .. } => GLEBE_ERROR_ADOPTED,
            Self::ShortBitmap { .. } => GLEBE_ERROR_BAD_LEN,
            Self::ShortText { .. } => GLEBE_ERROR_BUFFER_TOO_SMALL,
            Self::Reserve(error) => code_of(error),
            Self::Volatile(error) => code_of_volatile(error),
            Self::Zpool(error) => code_of_zpool(error),
        }
    }
}

fn code_of(error: &Error) -> c_int {
    match error {
        Error::ZeroPages => GLEBE_ERROR_ZERO_PAGES,
        Error::BadAlign { .. } => GLEBE_ERROR_BAD_ALIGN,
        Error::NoRun { .. } => GLEBE_ERROR_NO_RUN,
        Error::WouldWait => GLEBE_ERROR_WOULD_WAIT,
        Error::Forked => GLEBE_ERROR_FORKED,
        Error::BadPageLen { .. } => GLEBE_ERROR_BAD_PAGE_LEN,
        Error::BadLen { .. } => GLEBE_ERROR_BAD_LEN,
        Error::Contig(error) => match error {
            contig::Error::ZeroLength => GLEBE_ERROR_BAD_LEN,
            contig::Error::TooLarge { .. }
            | contig::Error::CgroupLimit { .. }
            | contig::Error::PoolShort { .. } => GLEBE_ERROR_NO_MEMORY,
            contig::Error::NoSuchSize { .. } | contig::Error::NotHuge { .. } => {
                GLEBE_ERROR_NO_SOURCE
            }
            contig::Error::NotContiguous { .. } => GLEBE_ERROR_NOT_CONTIGUOUS,
            contig::Error::Os(_) => GLEBE_ERROR_OS,
            _ => GLEBE_ERROR_OTHER,
        },
        Error::Os(_) => GLEBE_ERROR_OS,
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
        Error::Unmapped { .. } => GLEBE_ERROR_UNMAPPED,
        Error::Locked { .. } => GLEBE_ERROR_LOCKED,
        Error::Hugetlb { .. } => GLEBE_ERROR_HUGETLB,
        Error::Shared { .. } => GLEBE_ERROR_SHARED,
        Error::FilePrivate { .. } => GLEBE_ERROR_FILE_PRIVATE,
        Error::ReadOnly { .. } => GLEBE_ERROR_READ_ONLY,
        Error::Special { .. } => GLEBE_ERROR_SPECIAL,
        Error::MapBudget { .. } => GLEBE_ERROR_MAP_BUDGET,
        Error::ZeroCap => GLEBE_ERROR_BAD_ARGUMENT,
        Error::SelfTest { .. } => GLEBE_ERROR_SELF_TEST,
        Error::Stuck { .. } => GLEBE_ERROR_STUCK,
        Error::HandlerCovered => GLEBE_ERROR_HANDLER_COVERED,
        Error::NotHeld { .. } => GLEBE_ERROR_NOT_HELD,
        Error::Os(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            GLEBE_ERROR_NO_MEMORY
        }
        Error::Os(_) => GLEBE_ERROR_OS,
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_zpool(error: &zpool::Error) -> c_int {
    use zpool::Error;
    match error {
        Error::Empty => GLEBE_ERROR_EMPTY,
        Error::TooLong { .. } => GLEBE_ERROR_TOO_LONG,
        Error::Stale => GLEBE_ERROR_STALE,
        Error::Foreign => GLEBE_ERROR_FOREIGN,
        Error::BufferTooSmall { .. } => GLEBE_ERROR_BUFFER_TOO_SMALL,
        Error::Full { .. } | Error::Space => GLEBE_ERROR_FULL,
        Error::LimitBelowHeld { .. } => GLEBE_ERROR_LIMIT_BELOW_HELD,
        Error::NoBudget => GLEBE_ERROR_NO_BUDGET,
        Error::Rules(_) | Error::Table { .. } | Error::Classes { .. } => GLEBE_ERROR_BAD_RULES,
        Error::Forked => GLEBE_ERROR_FORKED,
        Error::Os(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            GLEBE_ERROR_NO_MEMORY
        }
        Error::Os(_) => GLEBE_ERROR_OS,
        _ => GLEBE_ERROR_OTHER,
    }
}
