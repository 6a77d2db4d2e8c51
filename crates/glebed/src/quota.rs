//! [`Users`] counts what each user holds, against the [`Quota`].

use std::collections::HashMap;
use std::time::Instant;

use glebe::units::Bytes;
use glebe_lease::wire::Flags;

use crate::settings::Quota;

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) held: u64,
    /// Of them, those of revocable leases.
    revocable: u64,
    pub(crate) promised: u64,
    pub(crate) connections: usize,
    /// Bytes of zeroing that the user may still cause now.
    allowance: f64,
    seen: Instant,
}

/// Bytes of a lease, of a revocable lease, or of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Held,
    Revocable,
    Promised,
}

impl Kind {
    pub(crate) fn of(flags: Flags) -> Self {
        if flags.revocable {
            Self::Revocable
        } else {
            Self::Held
        }
    }
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
            revocable: 0,
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
    pub(crate) fn add(&mut self, uid: u32, bytes: u64, kind: Kind) -> Result<(), Exceeded> {
        let quota = self.quota;
        let Some(user) = self.users.get_mut(&uid) else { return Ok(()) };
        let root = uid == 0;
        let of_kind = match kind {
            Kind::Held => None,
            Kind::Revocable => {
                Some((user.revocable, quota.revocable, "may hold by revocable leases"))
            }
            Kind::Promised => Some((user.promised, quota.promised, "may promise itself")),
        };
        let all = (user.held.saturating_add(user.promised), quota.user, "may hold");
        for (now, limit, what) in [Some(all), of_kind].into_iter().flatten().filter(|_| !root) {
            if !within(now.saturating_add(bytes), limit) {
                return Err(Exceeded { what, limit });
            }
        }
        if !root && quota.zeroing > Bytes::ZERO {
            let rate = quota.zeroing.get() as f64;
            user.allowance += user.seen.elapsed().as_secs_f64() * rate;
            user.allowance = user.allowance.min(rate);
            user.seen = Instant::now();
            if user.allowance <= 0.0 {
                let what = "may make the daemon zero in a second";
                return Err(Exceeded { what, limit: quota.zeroing });
            }
            user.allowance -= bytes as f64;
        }
        user.count(bytes, kind);
        Ok(())
    }

    /// Counts `bytes` as held, and as promised no more.
    pub(crate) fn take(&mut self, uid: u32, bytes: u64, kind: Kind) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.promised = user.promised.saturating_sub(bytes);
            user.count(bytes, kind);
        }
    }

    /// Forgets a user with nothing to count. A limit of zeroing outlasts connections.
    fn forget_idle(&mut self, uid: u32) {
        let idle = |user: &User| user.connections == 0 && user.held == 0 && user.promised == 0;
        if self.quota.zeroing == Bytes::ZERO && self.users.get(&uid).is_some_and(idle) {
            self.users.remove(&uid);
        }
    }

    pub(crate) fn remove(&mut self, uid: u32, bytes: u64, kind: Kind) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.each(kind).for_each(|now| *now = now.saturating_sub(bytes));
            self.forget_idle(uid);
        }
    }
}

impl User {
    /// Returns the counts that a kind has a part in.
    fn each(&mut self, kind: Kind) -> impl Iterator<Item = &mut u64> {
        let Self { held, revocable, promised, .. } = self;
        let counts = match kind {
            Kind::Held => [Some(held), None],
            Kind::Revocable => [Some(held), Some(revocable)],
            Kind::Promised => [Some(promised), None],
        };
        counts.into_iter().flatten()
    }

    fn count(&mut self, bytes: u64, kind: Kind) {
        self.each(kind).for_each(|now| *now = now.saturating_add(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_refuses_what_exceeds_it_and_root_has_none() {
        let [user, promised, revocable] = [10, 4, 2].map(Bytes::mib);
        let quota = Quota { user, promised, revocable, connections: 1, ..Quota::default() };
        let mut users = Users::new(quota);
        assert!(users.connect(7) && !users.connect(7) && users.connect(8));
        let mib = 1 << 20;
        users.add(7, 4 * mib, Kind::Promised).unwrap();
        let more = users.add(7, mib, Kind::Promised).unwrap_err();
        assert_eq!(more.limit, promised);
        users.add(7, 6 * mib, Kind::Held).unwrap();
        assert_eq!(users.add(7, 1, Kind::Held).unwrap_err().limit, user);
        users.add(8, 10 * mib, Kind::Held).unwrap();
        users.remove(7, 4 * mib, Kind::Promised);
        users.add(7, 4 * mib, Kind::Held).unwrap();
        assert!(users.add(7, u64::MAX, Kind::Held).is_err());
        users.remove(8, 10 * mib, Kind::Held);
        users.add(8, 2 * mib, Kind::Revocable).unwrap();
        assert_eq!(users.add(8, mib, Kind::Revocable).unwrap_err().limit, revocable);
        users.remove(8, 2 * mib, Kind::Revocable);
        users.add(8, 2 * mib, Kind::Revocable).unwrap();
        assert!(users.connect(0) && users.connect(0));
        users.add(0, u64::MAX / 2, Kind::Held).unwrap();
    }

    #[test]
    fn zeroing_has_a_rate() {
        let zeroing = Bytes::mib(100);
        let mut users = Users::new(Quota { zeroing, ..Quota::default() });
        assert!(users.connect(7));
        users.add(7, 1 << 30, Kind::Held).unwrap();
        users.remove(7, 1 << 30, Kind::Held);
        let refused = users.add(7, 1, Kind::Held).unwrap_err();
        assert_eq!(refused.limit, zeroing);
        users.disconnect(7);
        assert!(users.connect(7));
        assert!(users.add(7, 1, Kind::Held).is_err(), "a new connection has no new allowance");
    }
}
