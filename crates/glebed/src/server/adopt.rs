//! Takes over leases of an earlier daemon, which the service manager kept.
//!
//! Clients keep their memory. The daemon cannot know which answers the earlier one still owed, so
//! it ends the connection in its own direction: clients see that a daemon has ended. It still
//! receives releases, and the end. The pages are no part of the reserve: they go back to the pool.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use glebe_lease::socket::Packets;
use glebe_lease::wire::Name;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::Shutdown;

use super::Server;
use crate::conn::Conn;
use crate::leases::{Held, Lease};
use crate::quota::Kind;
use crate::store::{of_conn, Restored, Store};

impl Server {
    pub(crate) fn adopt(&mut self, handed: Vec<(String, OwnedFd)>) {
        let (store, Restored { mut conns, leases }) = Store::new(self.settings.stored, handed);
        self.store = store;
        self.serial = conns.keys().copied().max().unwrap_or(0);
        let mut keys = BTreeMap::new();
        for (stored, files) in leases {
            let serial = stored.serial;
            if let Some(conn) = conns.remove(&serial) {
                let key = self.adopt_conn(conn, serial, stored.name);
                keys.extend(key.map(|key| (serial, key)));
            }
            let name = stored.to_string();
            let Some((key, conn)) = keys.get(&serial).and_then(|k| Some((*k, self.conns.get(*k)?)))
            else {
                cut(&files);
                self.store.forget(&name);
                continue;
            };
            let lease = Lease {
                conn: key,
                uid: conn.uid,
                pid: conn.pid,
                held: Held::Adopted(files),
                bytes: stored.bytes,
                flags: stored.flags,
                name: stored.name,
                until: None,
                stored: Some(name),
            };
            self.users.hold(conn.uid, stored.bytes, Kind::of(stored.flags));
            self.leases.adopt(stored.number, lease);
        }
        for (serial, conn) in conns {
            self.forget_conn(serial, &conn.into());
        }
    }

    fn adopt_conn(&mut self, conn: OwnedFd, serial: u64, name: Name) -> Option<usize> {
        let mut conn = Conn::new(Packets::from(conn), serial).ok()?;
        (conn.is_adopted, conn.name) = (true, name);
        // Fails if the client has left, which epoll reports.
        let _ = rustix::net::shutdown(&conn.packets, Shutdown::Write);
        // Adopted connections count, and no limit ends them.
        let _ = self.users.connect(conn.uid);
        let key = self.conns.insert(conn);
        let data = EventData::new_u64(key as u64);
        match epoll::add(&self.poll, &self.conns[key].packets, data, EventFlags::IN) {
            Ok(()) => Some(key),
            Err(_) => {
                self.close(key);
                None
            }
        }
    }

    /// The service manager's copy would keep the connection open.
    pub(super) fn forget_conn(&mut self, serial: u64, conn: &Packets) {
        if self.store.forget(&of_conn(serial)) {
            let _ = rustix::net::shutdown(conn, Shutdown::Both);
        }
    }
}

/// Ends the access of all holders, which frees the pages.
pub(super) fn cut(files: &[OwnedFd]) {
    for file in files {
        // No seal prevents it.
        let _ = rustix::fs::ftruncate(file, 0);
    }
}
