//! [`Error`] of this layer.

use std::fmt;

use crate::error::OsError;

/// Why a reclaimer cannot.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Nothing says how much memory there is: no group above this process has a limit that can be
    /// read, and neither can the list of the machine, those of its NUMA nodes and sysinfo(2).
    Blind {
        /// What was wrong with the groups, where something was.
        groups: Option<OsError>,
        /// What was wrong with the machine's list.
        machine: OsError,
    },
    /// Another reclaimer of this process has the part.
    Taken {
        /// What kind of part.
        what: &'static str,
    },
    /// The part cannot be shed.
    Reserve(crate::reserve::Error),
    /// The part cannot be shed.
    Volatile(crate::volatile::Error),
    /// A pool that this process inherited.
    Pool(crate::zpool::Error),
    /// The thread was started before.
    Started,
    /// This is a forked child: the reclaimer, and its thread, stayed with the parent.
    Forked,
    /// The kernel refused.
    Os(OsError),
}

impl fmt::Display for Error {
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

impl std::error::Error for Error {
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

impl From<OsError> for Error {
    fn from(why: OsError) -> Self {
        Self::Os(why)
    }
}

impl From<crate::volatile::Error> for Error {
    fn from(why: crate::volatile::Error) -> Self {
        Self::Volatile(why)
    }
}

impl From<crate::zpool::Error> for Error {
    fn from(why: crate::zpool::Error) -> Self {
        Self::Pool(why)
    }
}

impl From<crate::reserve::Error> for Error {
    fn from(why: crate::reserve::Error) -> Self {
        Self::Reserve(why)
    }
}
