//! [`Store`] has the service manager keep descriptors, which it hands to the next daemon.
//!
//! All files of a lease have one name, and so has its connection. Source: sd_notify(3).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use glebe_lease::wire::{Flags, Name, FILES_MAX};
use rustix::io::Errno;
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
    /// Names to forget, with their descriptors, which a busy service manager did not hear.
    owed: Vec<(String, usize)>,
    /// Socket of the service manager.
    manager: Option<PathBuf>,
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
        let manager = std::env::var_os("NOTIFY_SOCKET").map(PathBuf::from);
        let (mut store, mut restored) =
            (Self { left, manager, ..Self::default() }, Restored::default());
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

    /// Has all files kept, or none: no files of a lease whose connection is not kept, because the
    /// next daemon would cut them.
    pub(crate) fn keep(&mut self, name: String, files: &[BorrowedFd<'_>]) {
        self.pay();
        let conn = StoredLease::parse(&name).map(|lease| of_conn(lease.serial));
        let is_alone = conn.is_some_and(|conn| !self.kept.contains_key(&conn));
        if files.len() > self.left || self.kept.contains_key(&name) || is_alone {
            return;
        }
        let text = format!("FDSTORE=1\nFDNAME={name}\n");
        let mut chunks = files.chunks(FILES_MAX);
        let is_first_sent = chunks.next().is_some_and(|files| self.send(&text, files).is_ok());
        if !is_first_sent {
            return;
        }
        let sent = chunks.try_for_each(|files| self.send(&text, files));
        self.left -= files.len();
        self.kept.insert(name.clone(), files.len());
        if sent.is_err() {
            let _ = self.forget(&name);
        }
    }

    /// Returns false if nothing of that name was kept.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        let Some(count) = self.kept.remove(name) else { return false };
        self.owed.push((name.to_owned(), count));
        self.pay();
        true
    }

    /// Has the service manager close what is to be forgotten. A busy one is asked again at the next
    /// call. Until then, files of ended leases are there without pages, and files of a
    /// living lease that was kept in part may outlive it.
    fn pay(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        for (name, count) in owed {
            let is_busy = !self.owed.is_empty()
                || self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), &[])
                    == Err(Errno::AGAIN);
            match is_busy {
                true => self.owed.push((name, count)),
                false => self.left += count,
            }
        }
    }

    /// Tells the service manager that the daemon works. Returns false if the manager is busy, so
    /// that this sign is lost.
    pub(crate) fn show_life(&self) -> bool {
        self.send("WATCHDOG=1\n", &[]) != Err(Errno::AGAIN)
    }

    /// Fails if the service manager is busy, because clients must not wait for it.
    fn send(&self, text: &str, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some(path) = &self.manager else { return Ok(()) };
        let address = match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name)?,
            None => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::INVAL);
        }
        let text = [IoSlice::new(text.as_bytes())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg_addr(&socket, &address, &text, &mut control, flags).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use glebe_testing::Scratch;

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

    fn lease(serial: u64) -> String {
        let (number, bytes) = (1, 1 << 20);
        let (flags, name) = (Flags::default(), Name::new("it"));
        StoredLease { number, serial, bytes, flags, name }.to_string()
    }

    #[test]
    fn a_busy_service_manager_holds_up_nobody_and_hears_later() {
        let scratch = Scratch::new("store");
        let path = scratch.path().join("notify");
        let told = UnixDatagram::bind(&path).unwrap();
        told.set_nonblocking(true).unwrap();
        let mut store = Store { left: 1 << 20, manager: Some(path), ..Store::default() };
        let file = [told.as_fd()];
        let mut serials = 1..1 << 16;
        let refused = serials.find(|serial| {
            store.keep(of_conn(*serial), &file);
            !store.kept.contains_key(&of_conn(*serial))
        });
        let refused = refused.expect("the queue has an end");
        let left = store.left;
        assert_eq!(left as u64, (1 << 20) - (refused - 1));
        assert!(store.forget(&of_conn(1)));
        assert_eq!((store.left, store.owed.len()), (left, 1));
        store.keep(lease(2), &file);
        assert!(!store.kept.contains_key(&lease(2)), "nobody hears it");

        let drained = || {
            std::iter::from_fn(|| {
                let mut text = [0; 128];
                let len = told.recv(&mut text).ok()?;
                Some(String::from_utf8_lossy(&text[..len]).into_owned())
            })
        };
        assert_eq!(drained().count() as u64, refused - 1);
        store.keep(lease(refused), &file);
        assert!(!store.kept.contains_key(&lease(refused)), "its connection is not kept");
        assert_eq!((store.left, store.owed.len()), (left + 1, 0));
        store.keep(lease(2), &file);
        assert!(store.kept.contains_key(&lease(2)));
        let said: Vec<String> = drained().collect();
        assert_eq!(said[0], "FDSTOREREMOVE=1\nFDNAME=glebe-conn-1\n");
        assert_eq!(said[1..], [format!("FDSTORE=1\nFDNAME={}\n", lease(2))]);
    }
}
