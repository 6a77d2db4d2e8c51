//! [`Failure`] is the error of a call, with its code and text.

use std::ffi::c_int;
use std::io::ErrorKind;

use glebe::contig;
use glebe::error::OsError;
use glebe::internal::sys::errno;
use glebe::reserve::ReserveError;
use glebe::{cache, lease, reclaim, swap, vmap, volatile, zpool};

use crate::abi::*;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{text}")]
    Here { code: c_int, text: String },
    #[error("the argument {name}, {addr:#x}, is no memory that can be written")]
    NotWritable { name: &'static str, addr: usize },
    #[error("the memory from {start:#x} to {end:#x} is a volatile region already")]
    Adopted { start: usize, end: usize },
    #[error(transparent)]
    Cache(#[from] cache::CacheError),
    #[error(transparent)]
    Contig(#[from] contig::Error),
    #[error(transparent)]
    Lease(#[from] lease::LeaseError),
    #[error(transparent)]
    Reclaim(#[from] reclaim::ReclaimError),
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    #[error(transparent)]
    Swap(#[from] swap::SwapError),
    #[error(transparent)]
    View(#[from] vmap::Error),
    #[error(transparent)]
    Volatile(#[from] volatile::Error),
    #[error(transparent)]
    Zpool(#[from] zpool::Error),
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        Self::Here { code, text: text.into() }
    }

    #[cold]
    pub(crate) fn null(name: &str) -> Self {
        Self::new(GLEBE_ERROR_NULL, format!("the argument {name} is a null pointer"))
    }

    #[cold]
    pub(crate) fn bad(name: &str, value: u64) -> Self {
        Self::new(GLEBE_ERROR_BAD_ARGUMENT, format!("{value:#x} is no value of {name}"))
    }

    /// Reads 1 as yes and 0 as no. Refuses other values.
    pub(crate) fn flag(name: &str, value: u64) -> Result<bool, Self> {
        match value {
            0 | 1 => Ok(value == 1),
            other => Err(Self::bad(name, other)),
        }
    }

    #[cold]
    pub(crate) fn forked() -> Self {
        let text = "this process was forked from the owner of the handle, which stayed there";
        Self::new(GLEBE_ERROR_FORKED, text)
    }

    #[cold]
    pub(crate) fn beyond(what: &str, at: u64, len: u64) -> Self {
        Self::new(GLEBE_ERROR_BEYOND, format!("the {what} has {len}; {at} is beyond that"))
    }

    /// Returns the error number, for functions that fail as mmap(2) and syscall(2) do.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Contig(error) => match error {
                contig::Error::ZeroLength | contig::Error::BadAlign { .. } => errno::EINVAL,
                contig::Error::Os(error) if error.kind() == ErrorKind::TimedOut => errno::ETIMEDOUT,
                contig::Error::Os(error) => error.errno().unwrap_or(errno::EIO),
                _ => errno::ENOMEM,
            },
            Self::NotWritable { .. } => errno::EFAULT,
            Self::Volatile(volatile::Error::Os(error)) => error.errno().unwrap_or(errno::EIO),
            _ => match self.code() {
                GLEBE_ERROR_BAD_ARGUMENT
                | GLEBE_ERROR_UNALIGNED
                | GLEBE_ERROR_EMPTY
                | GLEBE_ERROR_BEYOND => errno::EINVAL,
                GLEBE_ERROR_NO_SOURCE => errno::EPERM,
                GLEBE_ERROR_TOO_MANY
                | GLEBE_ERROR_NO_MEMORY
                | GLEBE_ERROR_NO_HOLDER_LEFT
                | GLEBE_ERROR_MAP_BUDGET => errno::ENOMEM,
                GLEBE_ERROR_STUCK | GLEBE_ERROR_UNDER_WAY => errno::EAGAIN,
                GLEBE_ERROR_WOULD_WAIT => errno::EDEADLK,
                _ => errno::EIO,
            },
        }
    }

    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Here { code, .. } => *code,
            Self::NotWritable { .. } => GLEBE_ERROR_BAD_ARGUMENT,
            Self::Adopted { .. } => GLEBE_ERROR_ADOPTED,
            Self::Cache(error) => code_of_cache(error),
            Self::Contig(error) => code_of_contig(error),
            Self::Lease(error) => code_of_lease(error),
            Self::Reclaim(error) => code_of_reclaim(error),
            Self::Reserve(error) => code_of(error),
            Self::Swap(error) => code_of_swap(error),
            Self::View(error) => code_of_view(error),
            Self::Volatile(error) => code_of_volatile(error),
            Self::Zpool(error) => code_of_zpool(error),
        }
    }
}

pub(crate) fn none_of(members: &[(&str, u64)]) -> Result<(), Failure> {
    match members.iter().find(|(_, value)| *value != 0) {
        Some((name, value)) => Err(Failure::bad(name, *value)),
        None => Ok(()),
    }
}

/// Returns the code of a kernel error, the same in every part of the library.
fn code_of_os(error: &OsError) -> c_int {
    match error.kind() {
        ErrorKind::OutOfMemory | ErrorKind::StorageFull => GLEBE_ERROR_NO_MEMORY,
        _ => GLEBE_ERROR_OS,
    }
}

fn code_of(error: &ReserveError) -> c_int {
    match error {
        ReserveError::ZeroPages => GLEBE_ERROR_EMPTY,
        ReserveError::BadAlign { .. } => GLEBE_ERROR_BAD_ALIGN,
        ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. } => GLEBE_ERROR_NO_RUN,
        ReserveError::WouldWait => GLEBE_ERROR_WOULD_WAIT,
        ReserveError::Forked => GLEBE_ERROR_FORKED,
        ReserveError::BadLen { .. } | ReserveError::BadPageLen { .. } => GLEBE_ERROR_BAD_LEN,
        ReserveError::Contig(error) => code_of_contig(error),
        ReserveError::FixedLen { .. } => GLEBE_ERROR_FIXED_LEN,
        ReserveError::NoRoom { .. } => GLEBE_ERROR_NO_ROOM,
        ReserveError::NotGiven { .. } => GLEBE_ERROR_NOT_GIVEN,
        ReserveError::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_reclaim(error: &reclaim::ReclaimError) -> c_int {
    use reclaim::ReclaimError;
    match error {
        ReclaimError::Blind { .. } => GLEBE_ERROR_BLIND,
        ReclaimError::Taken { .. } => GLEBE_ERROR_TAKEN,
        ReclaimError::Reserve(error) => code_of(error),
        ReclaimError::Volatile(error) => code_of_volatile(error),
        ReclaimError::Pool(error) => code_of_zpool(error),
        ReclaimError::Started => GLEBE_ERROR_STARTED,
        ReclaimError::Forked => GLEBE_ERROR_FORKED,
        ReclaimError::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_swap(error: &swap::SwapError) -> c_int {
    use swap::SwapError;
    match error {
        SwapError::Len { .. }
        | SwapError::NoBudget { .. }
        | SwapError::Capacity { .. }
        | SwapError::NotAPage { .. }
        | SwapError::AreaPages { .. } => GLEBE_ERROR_BAD_LEN,
        SwapError::Stale => GLEBE_ERROR_STALE,
        SwapError::Foreign => GLEBE_ERROR_FOREIGN,
        SwapError::Dead => GLEBE_ERROR_DEAD,
        SwapError::Pinned => GLEBE_ERROR_PINNED,
        SwapError::TooManyPins { .. } => GLEBE_ERROR_PINS_EXHAUSTED,
        SwapError::Budget { .. } => GLEBE_ERROR_BUDGET,
        SwapError::BudgetBelowPinned { .. } | SwapError::PutBackBelowStored { .. } => {
            GLEBE_ERROR_LIMIT_BELOW_HELD
        }
        SwapError::Full { .. } | SwapError::FileFull { .. } => GLEBE_ERROR_FULL,
        SwapError::Addresses { .. } => GLEBE_ERROR_NO_RUN,
        SwapError::Damaged { .. } | SwapError::DamagedPage { .. } | SwapError::LostPage { .. } => {
            GLEBE_ERROR_CORRUPT
        }
        SwapError::Offset { .. } | SwapError::Beyond { .. } => GLEBE_ERROR_BEYOND,
        SwapError::SignalBlocked | SwapError::SignalStack { .. } | SwapError::HandlerCovered => {
            GLEBE_ERROR_SIGNAL
        }
        SwapError::Forked => GLEBE_ERROR_FORKED,
        SwapError::Pool(error) => code_of_zpool(error),
        SwapError::Os(error) => code_of_os(error),
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
        Error::NoSuchNode { .. } | Error::EmptyNode { .. } | Error::NoNodes { .. } => {
            GLEBE_ERROR_BAD_ARGUMENT
        }
        Error::NoAddresses { .. }
        | Error::TooLarge { .. }
        | Error::CgroupLimit { .. }
        | Error::PoolShort { .. } => GLEBE_ERROR_NO_MEMORY,
        Error::NoSuchSize { .. } | Error::NotHuge { .. } => GLEBE_ERROR_NO_SOURCE,
        Error::NotContiguous { .. } => GLEBE_ERROR_NOT_CONTIGUOUS,
        Error::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_cache(error: &cache::CacheError) -> c_int {
    use cache::CacheError;
    match error {
        CacheError::TooLong { .. } => GLEBE_ERROR_TOO_LONG,
        CacheError::BadName { .. } | CacheError::BadSize { .. } => GLEBE_ERROR_BAD_ARGUMENT,
        CacheError::Lease(error) => code_of_lease(error),
        CacheError::File { source, .. } => code_of_volatile(source),
        CacheError::Directory { source, .. } => code_of_os(source),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_lease(error: &lease::LeaseError) -> c_int {
    use lease::LeaseError;
    match error {
        LeaseError::NoDaemon { .. } | LeaseError::Silent { .. } => GLEBE_ERROR_NO_DAEMON,
        LeaseError::Refused { errno, .. } => match *errno {
            errno::ENOMEM => GLEBE_ERROR_NO_MEMORY,
            errno::EDQUOT => GLEBE_ERROR_QUOTA,
            errno::EAGAIN => GLEBE_ERROR_UNDER_WAY,
            errno::EINVAL => GLEBE_ERROR_BAD_ARGUMENT,
            _ => GLEBE_ERROR_OTHER,
        },
        LeaseError::Revoked => GLEBE_ERROR_REVOKED,
        LeaseError::Beyond { .. } => GLEBE_ERROR_BEYOND,
        LeaseError::Forked => GLEBE_ERROR_FORKED,
        LeaseError::HandlerCovered => GLEBE_ERROR_HANDLER_COVERED,
        LeaseError::Connection(_) => GLEBE_ERROR_OS,
        LeaseError::Os(error) => code_of_os(error),
        _ => GLEBE_ERROR_OTHER,
    }
}

fn code_of_volatile(error: &volatile::Error) -> c_int {
    use volatile::Error;
    match error {
        Error::Unaligned { .. } => GLEBE_ERROR_UNALIGNED,
        Error::Empty => GLEBE_ERROR_EMPTY,
        Error::Beyond { .. } => GLEBE_ERROR_BEYOND,
        Error::Unsuitable(refusal) => code_of_refusal(refusal),
        Error::MapBudget { .. } => GLEBE_ERROR_MAP_BUDGET,
        Error::ZeroCap | Error::BadOption { .. } => GLEBE_ERROR_BAD_ARGUMENT,
        Error::Stuck { .. } => GLEBE_ERROR_STUCK,
        Error::HandlerCovered => GLEBE_ERROR_HANDLER_COVERED,
        Error::Cloned | Error::Forked => GLEBE_ERROR_FORKED,
        Error::UnsuitableFile(_) | Error::BadFile { .. } => GLEBE_ERROR_BAD_FILE,
        Error::Truncated { .. } => GLEBE_ERROR_TRUNCATED,
        Error::NoHolderLeft { .. } => GLEBE_ERROR_NO_HOLDER_LEFT,
        Error::Busy { .. } | Error::PurgeUnderWay { .. } => GLEBE_ERROR_UNDER_WAY,
        Error::PinsExhausted { .. } => GLEBE_ERROR_PINS_EXHAUSTED,
        Error::Quota { .. } => GLEBE_ERROR_QUOTA,
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
        Refusal::Private { .. } => GLEBE_ERROR_PRIVATE,
        Refusal::OnDisk { .. } => GLEBE_ERROR_BAD_FILE,
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
        Error::Codec(CodecError::Corrupt { .. }) => GLEBE_ERROR_CORRUPT,
        Error::Codec(CodecError::NoMemory { .. }) => GLEBE_ERROR_NO_MEMORY,
        Error::Codec(CodecError::Level { .. }) | Error::NoBudget => GLEBE_ERROR_BAD_ARGUMENT,
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
            let all: [Failure; 10] = [
                cache::CacheError::Directory { path: String::new(), source: os() }.into(),
                contig::Error::from(os()).into(),
                ReserveError::from(os()).into(),
                ReserveError::from(contig::Error::from(os())).into(),
                lease::LeaseError::from(os()).into(),
                reclaim::ReclaimError::from(os()).into(),
                swap::SwapError::from(os()).into(),
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
