//! [`Users`] counts what each user holds, against the [`Quota`].

use std::collections::HashMap;
use std::time::Instant;

use glebe::units::Bytes;
use glebe_lease::wire::Flags;

use crate::settings::Quota;

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) held: u64,
    /// The part of `held` in revocable leases.
    revocable: u64,
    pub(crate) promised: u64,
    pub(crate) connections: usize,
    /// Bytes of zeroing that the user may still cause now.
    allowance: f64,
    seen: Instant,
}

/// What a user has bytes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) is_promise: bool,
    pub(crate) is_revocable: bool,
}

impl Kind {
    pub(crate) fn of(flags: Flags) -> Self {
        Self { is_promise: false, is_revocable: flags.revocable }
    }

    pub(crate) fn promised(self) -> Self {
        Self { is_promise: true, ..self }
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
        let held = user.held.saturating_add(user.promised);
        let limits = [
            (true, held, quota.user, "may hold"),
            (kind.is_promise, user.promised, quota.promised, "may promise itself"),
            (kind.is_revocable, user.revocable, quota.revocable, "may hold by revocable leases"),
        ];
        for (_, now, limit, what) in limits.into_iter().filter(|limit| uid != 0 && limit.0) {
            if !within(now.saturating_add(bytes), limit) {
                return Err(Exceeded { what, limit });
            }
        }
        user.zero(uid, bytes, quota.zeroing)?;
        user.count(bytes, kind);
        Ok(())
    }

    /// Counts `bytes` that the user holds as another kind.
    pub(crate) fn turn(
        &mut self,
        uid: u32,
        bytes: u64,
        from: Kind,
        to: Kind,
    ) -> Result<(), Exceeded> {
        let limit = self.quota.revocable;
        let Some(user) = self.users.get_mut(&uid) else { return Ok(()) };
        let grows = to.is_revocable && !from.is_revocable && uid != 0;
        if grows && !within(user.revocable.saturating_add(bytes), limit) {
            return Err(Exceeded { what: "may hold by revocable leases", limit });
        }
        user.discount(bytes, from);
        user.count(bytes, to);
        Ok(())
    }

    /// Takes `bytes` from what the user may make the daemon zero.
    pub(crate) fn zero(&mut self, uid: u32, bytes: u64) -> Result<(), Exceeded> {
        let limit = self.quota.zeroing;
        self.users.get_mut(&uid).map_or(Ok(()), |user| user.zero(uid, bytes, limit))
    }

    /// Undoes [`Users::zero`].
    pub(crate) fn unzero(&mut self, uid: u32, bytes: u64) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.allowance += bytes as f64;
        }
    }

    /// Undoes [`Users::add`].
    pub(crate) fn undo(&mut self, uid: u32, bytes: u64, kind: Kind) {
        self.unzero(uid, bytes);
        self.remove(uid, bytes, kind);
    }

    /// Counts `bytes` that the user holds, whatever the limits.
    pub(crate) fn hold(&mut self, uid: u32, bytes: u64, kind: Kind) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.count(bytes, kind);
        }
    }

    /// Counts `bytes` as held, and as promised no more.
    pub(crate) fn take(&mut self, uid: u32, bytes: u64, kind: Kind) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.discount(bytes, kind.promised());
            user.count(bytes, kind);
        }
    }

    pub(crate) fn remove(&mut self, uid: u32, bytes: u64, kind: Kind) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.discount(bytes, kind);
            self.forget_idle(uid);
        }
    }

    /// Forgets a user with nothing to count. A limit of zeroing outlasts connections.
    fn forget_idle(&mut self, uid: u32) {
        let idle = |user: &User| user.connections == 0 && user.held == 0 && user.promised == 0;
        if self.quota.zeroing == Bytes::ZERO && self.users.get(&uid).is_some_and(idle) {
            self.users.remove(&uid);
        }
    }
}

impl User {
    fn zero(&mut self, uid: u32, bytes: u64, limit: Bytes) -> Result<(), Exceeded> {
        if uid == 0 || limit == Bytes::ZERO {
            return Ok(());
        }
        let rate = limit.get() as f64;
        self.allowance = (self.allowance + self.seen.elapsed().as_secs_f64() * rate).min(rate);
        self.seen = Instant::now();
        if self.allowance <= 0.0 {
            return Err(Exceeded { what: "may make the daemon zero in a second", limit });
        }
        self.allowance -= bytes as f64;
        Ok(())
    }

    fn count(&mut self, bytes: u64, kind: Kind) {
        self.each(kind).for_each(|now| *now = now.saturating_add(bytes));
    }

    fn discount(&mut self, bytes: u64, kind: Kind) {
        self.each(kind).for_each(|now| *now = now.saturating_sub(bytes));
    }

    /// Returns the counts that a kind has a part in.
    fn each(&mut self, kind: Kind) -> impl Iterator<Item = &mut u64> {
        let Self { held, revocable, promised, .. } = self;
        let whole = if kind.is_promise { promised } else { held };
        std::iter::once(whole).chain(kind.is_revocable.then_some(revocable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Kind = Kind { is_promise: false, is_revocable: false };
    const PROMISED: Kind = Kind { is_promise: true, is_revocable: false };
    const REVOCABLE: Kind = Kind { is_promise: false, is_revocable: true };

    #[test]
    fn each_limit_refuses_what_exceeds_it_and_root_has_none() {
        let [user, promised, revocable] = [10, 4, 2].map(Bytes::mib);
        let quota = Quota { user, promised, revocable, connections: 1, ..Quota::default() };
        let mut users = Users::new(quota);
        assert!(users.connect(7) && !users.connect(7) && users.connect(8));
        let mib = 1 << 20;
        users.add(7, 4 * mib, PROMISED).unwrap();
        let more = users.add(7, mib, PROMISED).unwrap_err();
        assert_eq!(more.limit, promised);
        users.add(7, 6 * mib, HELD).unwrap();
        assert_eq!(users.add(7, 1, HELD).unwrap_err().limit, user);
        users.add(8, 10 * mib, HELD).unwrap();
        users.remove(7, 4 * mib, PROMISED);
        users.add(7, 4 * mib, HELD).unwrap();
        assert!(users.add(7, u64::MAX, HELD).is_err());
        users.remove(8, 10 * mib, HELD);
        users.add(8, 2 * mib, REVOCABLE).unwrap();
        assert_eq!(users.add(8, mib, REVOCABLE).unwrap_err().limit, revocable);
        users.remove(8, 2 * mib, REVOCABLE);
        users.add(8, 2 * mib, REVOCABLE).unwrap();
        let promise = REVOCABLE.promised();
        assert_eq!(users.add(8, mib, promise).unwrap_err().limit, revocable);
        users.remove(8, 2 * mib, REVOCABLE);
        users.add(8, 2 * mib, promise).unwrap();
        users.take(8, 2 * mib, REVOCABLE);
        assert_eq!(users.add(8, mib, REVOCABLE).unwrap_err().limit, revocable);
        assert!(users.connect(0) && users.connect(0));
        users.add(0, u64::MAX / 2, HELD).unwrap();
    }

    #[test]
    fn zeroing_has_a_rate() {
        let zeroing = Bytes::mib(100);
        let mut users = Users::new(Quota { zeroing, ..Quota::default() });
        assert!(users.connect(7));
        users.add(7, 1 << 30, HELD).unwrap();
        users.undo(7, 1 << 30, HELD);
        users.add(7, 1 << 30, HELD).unwrap();
        users.remove(7, 1 << 30, HELD);
        let refused = users.add(7, 1, HELD).unwrap_err();
        assert_eq!(refused.limit, zeroing);
        users.disconnect(7);
        assert!(users.connect(7));
        assert!(users.add(7, 1, HELD).is_err(), "a new connection has no new allowance");
    }
}
