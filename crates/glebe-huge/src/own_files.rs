//! Descriptors of the library's connections, which the program must not close: a lease ends with
//! its connection.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::Arc;

use glebe_lease::Client;

/// The daemon lets a user have fewer connections by default.
const MOST: usize = 512;
const NONE: i32 = -1;

static OWN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// No own descriptor is lower.
static LEAST: AtomicI32 = AtomicI32::new(i32::MAX);

pub(crate) fn add(fd: i32) {
    LEAST.fetch_min(fd, Relaxed);
    replace(NONE, fd);
}

pub(crate) fn remove(fd: i32) {
    replace(fd, NONE);
}

fn replace(old: i32, new: i32) {
    let _ = OWN.iter().find(|slot| slot.compare_exchange(old, new, Relaxed, Relaxed).is_ok());
}

pub(crate) fn has(fd: i32) -> bool {
    fd >= LEAST.load(Relaxed) && fd != NONE && OWN.iter().any(|slot| slot.load(Relaxed) == fd)
}

/// Returns the lowest own descriptor in `first..=last`.
pub(crate) fn lowest(first: u32, last: u32) -> Option<u32> {
    let own = OWN.iter().filter_map(|slot| u32::try_from(slot.load(Relaxed)).ok());
    own.filter(|fd| (first..=last).contains(fd)).min()
}

/// An own connection, protected until its last clone drops.
#[derive(Clone)]
pub(crate) struct OwnClient {
    /// Drops before the client, because this library's own closes come through [`has`] too.
    _protected: Arc<Protected>,
    client: Client,
}

impl OwnClient {
    pub(crate) fn new(client: Client) -> Self {
        let fd = client.as_fd().as_raw_fd();
        add(fd);
        Self { _protected: Arc::new(Protected(fd)), client }
    }

    pub(crate) fn get(&self) -> &Client {
        &self.client
    }
}

struct Protected(i32);

impl Drop for Protected {
    fn drop(&mut self) {
        remove(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_are_known_until_they_are_removed() {
        for fd in [40, 30, 50] {
            add(fd);
        }
        assert_eq!([29, 30, 31, 40, 50, -1].map(has), [false, true, false, true, true, false]);
        assert_eq!(
            [lowest(0, u32::MAX), lowest(31, 45), lowest(41, 49)],
            [Some(30), Some(40), None]
        );
        remove(40);
        assert_eq!((has(40), lowest(31, 45)), (false, None));
        remove(30);
        remove(50);
    }
}
