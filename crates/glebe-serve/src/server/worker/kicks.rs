//! Ends connections that are idle, or that take no answers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Worker;
use crate::server::conn::Conn;
use crate::server::execute::Hands;

/// Longest time of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Bytes of a record of TLS that has come in part, or of a usual handshake.
const RECORD: u64 = 20 << 10;

impl Worker {
    /// Ends connections without a command for longer than `idle`, or in a handshake for longer than
    /// [`HANDSHAKE_TIME`].
    pub(super) fn kick_idle(&mut self, idle: Option<Duration>, hands: &Hands<'_>) {
        let now = self.shared.store.clock().now();
        if now == self.looked_at {
            return;
        }
        self.looked_at = now;
        let is_idle = |conn: &Conn| {
            let last = conn.shown.last.load(Ordering::Relaxed);
            if conn.watcher.is_some() {
                return false;
            }
            let most = match conn.stream.is_handshaking() {
                true => Some(idle.unwrap_or(HANDSHAKE_TIME).min(HANDSHAKE_TIME)),
                false => idle,
            };
            most.is_some_and(|most| u64::from(now.saturating_sub(last)) > most.as_secs())
        };
        let is_idle = |(number, conn): (usize, &Option<Box<Conn>>)| {
            conn.as_ref().filter(|conn| is_idle(conn)).map(|_| number)
        };
        let idle: Vec<usize> = self.conns.iter().filter_map(is_idle).collect();
        for number in idle {
            if let Some(mut conn) = self.conns.remove(number) {
                hands.counters.idle_kicks.add(1);
                let from = &conn.shown.addr;
                self.shared.verbosity.warn(format_args!("{from}: ended, it was idle"));
                self.shared.note_end(&conn, "idle_timeout");
                self.forget(&mut conn);
            }
        }
    }

    /// Ends the connection whose client has taken nothing for longest. Returns false if no
    /// connection keeps answers, or more of TLS than a record.
    #[cold]
    pub(super) fn kick_slowest(&mut self, hands: &Hands<'_>) -> bool {
        let waiting = self.conns.iter().filter_map(|(number, conn)| {
            let keeps = |conn: &Conn| conn.is_sending() || conn.kept > RECORD;
            let conn = conn.as_ref().filter(|conn| keeps(conn))?;
            Some((conn.took_at, number))
        });
        let Some((_, slowest)) = waiting.min() else { return false };
        if let Some(mut conn) = self.conns.remove(slowest) {
            hands.counters.answer_kicks.add(1);
            let from = &conn.shown.addr;
            self.shared.verbosity.warn(format_args!("{from}: ended, it takes no answers"));
            self.shared.note_end(&conn, "error");
            self.forget(&mut conn);
        }
        true
    }
}
