//! [`Store`] has the service manager keep descriptors, which it hands to the next daemon.
//!
//! All files of a lease have one name, and so has its connection. Source: sd_notify(3).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use glebe_lease::wire::{Flags, Name, FILES_MAX};
use rustix::net::{
    sendmsg_addr, socket_with, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

const CONN: &str = "glebe-conn-";
const LEASE: &str = "glebe-lease-";
const SPACE: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

/// What the name of a lease's files says: `glebe-lease-NUMBER-SERIAL-BYTES-FLAGS-NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredLease {
    pub(crate) number: u64,
    /// The serial number of its connection.
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: Flags,
    pub(crate) name: Name,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    left: usize,
    /// Descriptors by name.
    kept: HashMap<String, usize>,
}

/// Descriptors of an earlier daemon.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) conns: BTreeMap<u64, OwnedFd>,
    pub(crate) leases: Vec<(StoredLease, Vec<OwnedFd>)>,
}

pub(crate) fn is_ours(name: &str) -> bool {
    [CONN, LEASE].iter().any(|kind| name.starts_with(kind))
}

pub(crate) fn of_conn(serial: u64) -> String {
    format!("{CONN}{serial}")
}

impl fmt::Display for StoredLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, serial, bytes, flags, name } = self;
        let flags = [flags.contiguous, flags.one_file, flags.revocable].map(u8::from);
        let [contiguous, one_file, revocable] = flags;
        write!(f, "{LEASE}{number}-{serial}-{bytes}-{contiguous}{one_file}{revocable}-")?;
        name.as_str().bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl StoredLease {
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.strip_prefix(LEASE)?.split('-').collect();
        let [number, serial, bytes, flags, name] = fields[..] else { return None };
        let [contiguous, one_file, revocable] =
            <[u8; 3]>::try_from(flags.as_bytes()).ok()?.map(|bit| bit == b'1');
        let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes_of_name: Option<Vec<u8>> = name.as_bytes().chunks(2).map(hex).collect();
        Some(Self {
            number: number.parse().ok()?,
            serial: serial.parse().ok()?,
            bytes: bytes.parse().ok()?,
            flags: Flags { contiguous, one_file, revocable },
            name: Name::new(&String::from_utf8(bytes_of_name?).ok()?),
        })
    }
}

impl Store {
    /// Makes a store of at most `left` descriptors, and sorts those of the daemon before.
    pub(crate) fn new(left: usize, handed: Vec<(String, OwnedFd)>) -> (Self, Restored) {
        let (mut store, mut restored) = (Self { left, kept: HashMap::new() }, Restored::default());
        let mut leases: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
        for (name, fd) in handed {
            store.left = store.left.saturating_sub(1);
            *store.kept.entry(name.clone()).or_default() += 1;
            let serial = name.strip_prefix(CONN).and_then(|serial| serial.parse().ok());
            match serial {
                Some(serial) => _ = restored.conns.insert(serial, fd),
                None => leases.entry(name).or_default().push(fd),
            }
        }
        for (name, files) in leases {
            match StoredLease::parse(&name) {
                Some(lease) => restored.leases.push((lease, files)),
                None => _ = store.forget(&name),
            }
        }
        (store, restored)
    }

    /// Has all files kept, or none.
    pub(crate) fn keep(&mut self, name: String, files: &[BorrowedFd<'_>]) {
        if files.len() > self.left || self.kept.contains_key(&name) {
            return;
        }
        let text = format!("FDSTORE=1\nFDNAME={name}\n");
        let sent = files.chunks(FILES_MAX).try_for_each(|files| send(&text, files));
        self.left -= files.len();
        self.kept.insert(name.clone(), files.len());
        if sent.is_err() {
            let _ = self.forget(&name);
        }
    }

    /// Returns false if nothing of that name was kept.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        let Some(count) = self.kept.remove(name) else { return false };
        self.left += count;
        // Files that stay are cut, so they have no pages.
        let _ = send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), &[]);
        true
    }
}

fn send(text: &str, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(&*path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let text = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(&socket, &address, &text, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_files_is_read_back() {
        let flags = Flags { revocable: true, ..Flags::default() };
        for name in ["", "a-b:c", "\u{fc}ber"] {
            let name = Name::new(name);
            let lease = StoredLease { number: 3, serial: 9, bytes: 1 << 40, flags, name };
            let text = lease.to_string();
            assert!(is_ours(&text) && !text.contains(':') && text.len() < 255);
            assert_eq!(StoredLease::parse(&text), Some(lease));
        }
        assert_eq!(StoredLease::parse("glebe-lease-1-2-3"), None);
        assert!(!is_ours("glebe-leases.socket"));
    }
}
