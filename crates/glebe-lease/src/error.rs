//! [`LeaseError`] is the reason why a call failed.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::wire::Malformed;
use glebe_os::error::OsError;
use glebe_os::units::Bytes;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No daemon answers at this path.
    #[error("no daemon answers at {}: {source}{}", path.display(), hint(source.kind()))]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// The daemon at this path did not answer in time.
    #[error("the daemon at {} does not answer", path.display())]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon refused the request.
    #[error("{text}")]
    Refused {
        /// The error number, for example ENOMEM.
        errno: i32,
        /// The number that the request exceeds, for example the longest run.
        limit: Bytes,
        /// The reason.
        text: String,
    },
    /// The daemon took the memory back, which now reads as zeros.
    #[error("the daemon took this memory back")]
    Revoked,
    /// The range is not in the lease.
    #[error("{len} bytes at {offset} of a lease of {lease}")]
    Beyond {
        /// Offset in the lease.
        offset: Bytes,
        /// Bytes asked for.
        len: usize,
        /// Length of the lease.
        lease: Bytes,
    },
    /// The caller is a forked child; the lease stayed with its parent.
    #[error("this process was forked from the lease's owner; the lease stayed there")]
    Forked,
    /// The program has its own SIGBUS handler, which would get the touches of revoked memory.
    #[error("another SIGBUS handler was installed over glebe's")]
    HandlerCovered,
    /// The memory was leased, but this process could not map it. The lease was given back.
    #[error("the lease could not be mapped: {0}")]
    NotMapped(std::io::Error),
    /// The daemon broke the protocol.
    #[error("the daemon broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// The connection failed.
    #[error("the connection to the daemon failed: {0}")]
    Connection(#[from] std::io::Error),
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}

fn hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => " (glebe serve --leases starts one)",
        ErrorKind::PermissionDenied => " (this user is not in the socket's group)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_fits_the_refusal() {
        let said = |kind: ErrorKind| {
            LeaseError::NoDaemon { path: "/a/socket".into(), source: kind.into() }.to_string()
        };
        for kind in [ErrorKind::NotFound, ErrorKind::ConnectionRefused] {
            assert!(said(kind).ends_with("(glebe serve --leases starts one)"), "{kind}");
        }
        assert!(said(ErrorKind::PermissionDenied).ends_with("not in the socket's group)"));
        assert!(!said(ErrorKind::InvalidInput).contains('('), "{}", said(ErrorKind::InvalidInput));
    }
}
