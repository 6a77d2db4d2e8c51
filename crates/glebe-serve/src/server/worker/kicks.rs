//! Ends connections that are idle, that take no answers, or whose values stall.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Worker, STALL_LOOK};
use crate::server::conn::Conn;
use crate::server::counters::Counter;
use crate::server::execute::Hands;

/// Longest time of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A value has stalled if no byte of it came for longer than this.
const STALL: Duration = Duration::from_secs(1);
/// Bytes a second. After [`STALL`], a value that came more slowly on average has also stalled.
const RATE: f64 = 4096.0;

/// Bytes of a record of TLS that has come in part, or of a usual handshake.
const RECORD: u64 = 20 << 10;

impl Worker {
    /// Ends connections without a command or a byte of a value or an answer for longer than `idle`,
    /// or in a handshake for longer than [`HANDSHAKE_TIME`], at `now`, the second of the last poll.
    pub(super) fn kick_idle(&mut self, now: u32, idle: Option<Duration>, hands: &Hands<'_>) {
        if now == self.looked_at {
            return;
        }
        self.looked_at = now;
        let is_idle = |conn: &Conn| {
            let last = conn.shown.last.load(Ordering::Relaxed);
            // A queued connection may have unread bytes.
            if conn.watcher.is_some() || conn.is_queued {
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
            self.kick(number, &hands.counters.idle_kicks, "it was idle", "idle_timeout");
        }
    }

    /// Ends connections whose values had stalled at the time of the last poll, the most silent
    /// first, until a value that has waited long has room.
    pub(super) fn kick_stalled(&mut self, polled_at: Instant, hands: &Hands<'_>) {
        let is_time = self.charged > 0 && self.searched_at.elapsed() >= STALL_LOOK;
        if !is_time || !self.shared.is_short() {
            return;
        }
        self.searched_at = Instant::now();
        let stalled = self.conns.iter().filter_map(|(number, conn)| {
            // A queued connection may have unread bytes.
            let conn = conn.as_ref().filter(|conn| conn.charged > 0 && !conn.is_queued)?;
            let since = |time| polled_at.saturating_duration_since(time);
            let least = RATE * since(conn.charged_at).saturating_sub(STALL).as_secs_f64();
            let has_stalled = since(conn.came_at) > STALL || (conn.input.len() as f64) < least;
            has_stalled.then_some((conn.came_at, number))
        });
        let mut stalled: Vec<(Instant, usize)> = stalled.collect();
        stalled.sort_unstable();
        for (_, number) in stalled {
            if self.shared.is_short() {
                self.kick(number, &hands.counters.value_kicks, "its value stalled", "error");
            }
        }
    }

    /// Ends a connection, counts that, and tells watchers `why`.
    fn kick(&mut self, number: usize, count: &Counter, text: &str, why: &str) {
        if let Some(mut conn) = self.conns.remove(number) {
            count.add(1);
            let from = &conn.shown.addr;
            self.shared.verbosity.warn(format_args!("{from}: ended, {text}"));
            self.shared.note_end(&conn, why);
            self.forget(number, &mut conn);
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
        self.kick(slowest, &hands.counters.answer_kicks, "it takes no answers", "error");
        true
    }
}
