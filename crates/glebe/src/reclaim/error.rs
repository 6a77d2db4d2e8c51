//! [`ReclaimError`] explains refusals.

use std::fmt;

use glebe_os::error::OsError;

/// The reason for a refusal.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReclaimError {
    /// No limit can be read, of a group or of the machine.
    Blind {
        /// Failure to read the groups, if any.
        groups: Option<OsError>,
        /// Failure to read the machine's memory.
        machine: OsError,
    },
    /// Another reclaimer of this process has the part.
    Taken {
        /// Kind of part.
        what: &'static str,
    },
    /// The reserve cannot shed.
    Reserve(crate::reserve::ReserveError),
    /// The volatile memory cannot be shed.
    Volatile(crate::volatile::Error),
    /// The pool was inherited by fork.
    Pool(crate::zpool::Error),
    /// The reclaimer's thread already runs.
    Started,
    /// This is a forked child.
    Forked,
    /// The kernel refused a call.
    Os(OsError),
}

impl fmt::Display for ReclaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blind { groups: Some(groups), machine } => {
                write!(f, "nothing says how much memory there is: {groups}; {machine}")
            }
            Self::Blind { groups: None, machine } => {
                write!(f, "nothing says how much memory there is: no group with a limit; {machine}")
            }
            Self::Taken { what } => {
                write!(f, "another reclaimer of this process has this {what}; drop that one first")
            }
            Self::Reserve(why) => why.fmt(f),
            Self::Volatile(why) => why.fmt(f),
            Self::Pool(why) => why.fmt(f),
            Self::Started => f.write_str("this reclaimer's thread runs already"),
            Self::Forked => f.write_str(
                "the process was forked after the reclaimer was made: it works in the parent alone",
            ),
            Self::Os(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ReclaimError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Blind { machine: why, .. } | Self::Os(why) => Some(why),
            Self::Reserve(why) => Some(why),
            Self::Volatile(why) => Some(why),
            Self::Pool(why) => Some(why),
            Self::Taken { .. } | Self::Started | Self::Forked => None,
        }
    }
}

impl From<OsError> for ReclaimError {
    fn from(why: OsError) -> Self {
        Self::Os(why)
    }
}

impl From<crate::volatile::Error> for ReclaimError {
    fn from(why: crate::volatile::Error) -> Self {
        Self::Volatile(why)
    }
}

impl From<crate::zpool::Error> for ReclaimError {
    fn from(why: crate::zpool::Error) -> Self {
        Self::Pool(why)
    }
}

impl From<crate::reserve::ReserveError> for ReclaimError {
    fn from(why: crate::reserve::ReserveError) -> Self {
        Self::Reserve(why)
    }
}
