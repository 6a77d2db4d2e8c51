//! [`PartLease`] is a lease that its owner maps itself, message by message.
//!
//! A long lease has more files than a process may have open at once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::connection::Connection;
use crate::error::LeaseError;
use crate::wire::{Request, Wish};
use glebe_os::units::{Bytes, PageSize};

/// One message's share of a lease.
#[derive(Debug)]
pub struct Part {
    /// Length of the whole lease.
    pub bytes: Bytes,
    /// Length of each file.
    pub file: Bytes,
    /// Size of the files' pages.
    pub page: PageSize,
    /// Position of the first of these files in the lease.
    pub first: usize,
    /// Files of this message.
    pub files: Vec<File>,
    /// Frames of their pages.
    pub(crate) frames: Vec<u64>,
}

/// A lease that its owner maps itself. The drop gives it back at once.
#[derive(Debug)]
pub struct PartLease {
    number: u64,
    /// `None` once left.
    connection: Option<Arc<Connection>>,
}

impl PartLease {
    /// Leases memory. `each` gets the files, and may close them once it has mapped them.
    ///
    /// # Errors
    /// See [`Client::lease`]; [`LeaseError::NotMapped`] with an error of `each`.
    pub fn take(
        client: &Client,
        wish: Wish,
        mut each: impl FnMut(Part) -> io::Result<()>,
    ) -> Result<Self, LeaseError> {
        let size = Bytes::new(wish.bytes);
        let connection = client.connection();
        let number =
            client.repeated(|| connection.parts(0, size, Request::Lease(wish), &mut each))?;
        Ok(Self { number, connection: Some(Arc::clone(connection)) })
    }

    /// Returns the daemon's number of the lease.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Lets the daemon take the memory when others need it.
    ///
    /// # Errors
    /// [`LeaseError::Refused`] with EDQUOT, beyond what the user may hold so.
    pub fn offer(&self) -> Result<(), LeaseError> {
        self.ask(Request::Offer)
    }

    /// Keeps the memory from now on.
    ///
    /// # Errors
    /// [`LeaseError::Refused`] with ENOENT if the daemon wants the memory, or has taken it.
    pub fn keep(&self) -> Result<(), LeaseError> {
        self.ask(Request::Keep)
    }

    fn ask(&self, request: Request) -> Result<(), LeaseError> {
        let connection = self.connection.as_ref().ok_or(LeaseError::Forked)?;
        connection.call(self.number, request).map(drop)
    }

    /// Gives the lease back, and waits until the daemon knows.
    pub fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = connection.call(self.number, Request::Release);
        }
    }

    /// Lets go without giving the lease back. It ends with the last copy of its connection, which a
    /// forked child may have.
    pub fn leave(mut self) {
        self.connection = None;
    }
}

impl Drop for PartLease {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            let _ = connection.tell(self.number, Request::Release);
        }
    }
}

/// Connects as [`Client::connect_within`] does, with a descriptor of at least `least` if the
/// process may have one. The client drops the daemon's events, because a [`PartLease`] reads none.
/// It is not for a [`Lease`](crate::Lease).
///
/// # Errors
/// See [`Client::connect_within`].
pub fn connect_above(
    least: i32,
    path: &Path,
    name: &str,
    limit: Duration,
) -> Result<Client, LeaseError> {
    Client::connect_with(path, name, Some(limit), least, false)
}

/// Releases what the daemon granted to calls that waited no longer. Takes only answers that are
/// there already: the client is readable then.
///
/// # Errors
/// If the connection has ended.
pub fn release_late(client: &Client) -> Result<(), LeaseError> {
    client.connection().release_late()
}

/// Returns the bytes that the daemon had free when the client connected.
#[must_use]
pub fn free_at_connect(client: &Client) -> Bytes {
    client.free()
}
