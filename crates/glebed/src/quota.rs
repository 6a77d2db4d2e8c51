//! [`Users`] counts what each user holds, against the [`Quota`].

use std::collections::HashMap;
use std::time::Instant;

use glebe::units::Bytes;

use crate::settings::Quota;

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) held: u64,
    pub(crate) promised: u64,
    pub(crate) connections: usize,
    /// Bytes of zeroing that the user may still cause now.
    allowance: f64,
    seen: Instant,
}

/// A limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) what: &'static str,
    pub(crate) limit: Bytes,
}

#[derive(Debug)]
pub(crate) struct Users {
    quota: Quota,
    users: HashMap<u32, User>,
}

fn within(wanted: u64, limit: Bytes) -> bool {
    limit == Bytes::ZERO || wanted <= limit.get()
}

impl Users {
    pub(crate) fn new(quota: Quota) -> Self {
        Self { quota, users: HashMap::new() }
    }

    /// Counts a connection. Returns false if the user has too many.
    pub(crate) fn connect(&mut self, uid: u32) -> bool {
        let most = self.quota.connections;
        let allowance = self.quota.zeroing.get() as f64;
        let user = self.users.entry(uid).or_insert_with(|| User {
            held: 0,
            promised: 0,
            connections: 0,
            allowance,
            seen: Instant::now(),
        });
        let may = uid == 0 || most == 0 || user.connections < most;
        user.connections += usize::from(may);
        may
    }

    pub(crate) fn disconnect(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.connections = user.connections.saturating_sub(1);
            self.forget_idle(uid);
        }
    }

    /// Counts `bytes` that the user shall hold, or promise itself.
    pub(crate) fn add(&mut self, uid: u32, bytes: u64, promise: bool) -> Result<(), Exceeded> {
        let quota = self.quota;
        let Some(user) = self.users.get_mut(&uid) else { return Ok(()) };
        let all = user.held.saturating_add(user.promised).saturating_add(bytes);
        let root = uid == 0;
        if !root && !within(all, quota.user) {
            return Err(Exceeded { what: "a user may hold", limit: quota.user });
        }
        if promise && !root && !within(user.promised.saturating_add(bytes), quota.promised) {
            return Err(Exceeded { what: "a user may promise itself", limit: quota.promised });
        }
        if !root && quota.zeroing > Bytes::ZERO {
            let rate = quota.zeroing.get() as f64;
            user.allowance += user.seen.elapsed().as_secs_f64() * rate;
            user.allowance = user.allowance.min(rate);
            user.seen = Instant::now();
            if user.allowance <= 0.0 {
                let what = "in a second, a user may make the daemon zero";
                return Err(Exceeded { what, limit: quota.zeroing });
            }
            user.allowance -= bytes as f64;
        }
        match promise {
            true => user.promised += bytes,
            false => user.held += bytes,
        }
        Ok(())
    }

    /// Counts `bytes` as held, and as promised no more.
    pub(crate) fn take(&mut self, uid: u32, bytes: u64) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.promised = user.promised.saturating_sub(bytes);
            user.held += bytes;
        }
    }

    /// Forgets a user with nothing to count. A limit of zeroing outlasts connections.
    fn forget_idle(&mut self, uid: u32) {
        let idle = |user: &User| user.connections == 0 && user.held == 0 && user.promised == 0;
        if self.quota.zeroing == Bytes::ZERO && self.users.get(&uid).is_some_and(idle) {
            self.users.remove(&uid);
        }
    }

    pub(crate) fn remove(&mut self, uid: u32, bytes: u64, promise: bool) {
        if let Some(user) = self.users.get_mut(&uid) {
            match promise {
                true => user.promised = user.promised.saturating_sub(bytes),
                false => user.held = user.held.saturating_sub(bytes),
            }
            self.forget_idle(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_refuses_what_exceeds_it_and_root_has_none() {
        let (user, promised) = (Bytes::mib(10), Bytes::mib(4));
        let quota = Quota { user, promised, connections: 1, ..Quota::default() };
        let mut users = Users::new(quota);
        assert!(users.connect(7) && !users.connect(7) && users.connect(8));
        let mib = 1 << 20;
        users.add(7, 4 * mib, true).unwrap();
        let more = users.add(7, mib, true).unwrap_err();
        assert_eq!(more.limit, promised);
        users.add(7, 6 * mib, false).unwrap();
        assert_eq!(users.add(7, 1, false).unwrap_err().limit, user);
        users.add(8, 10 * mib, false).unwrap();
        users.remove(7, 4 * mib, true);
        users.add(7, 4 * mib, false).unwrap();
        assert!(users.add(7, u64::MAX, false).is_err());
        assert!(users.connect(0) && users.connect(0));
        users.add(0, u64::MAX / 2, false).unwrap();
    }

    #[test]
    fn zeroing_has_a_rate() {
        let zeroing = Bytes::mib(100);
        let mut users = Users::new(Quota { zeroing, ..Quota::default() });
        assert!(users.connect(7));
        users.add(7, 1 << 30, false).unwrap();
        users.remove(7, 1 << 30, false);
        let refused = users.add(7, 1, false).unwrap_err();
        assert_eq!(refused.limit, zeroing);
        users.disconnect(7);
        assert!(users.connect(7));
        assert!(users.add(7, 1, false).is_err(), "a new connection has no new allowance");
    }
}
