//! Serves connections that watch the server.

use std::io::{self, ErrorKind, Read};

use super::{Fate, Worker};
use crate::server::conn::Conn;
use crate::server::execute::Hands;

impl Worker {
    /// Sends new lines to the connections that watch the server, if they took the earlier ones.
    pub(super) fn serve_watchers(&mut self, hands: &Hands<'_>) {
        for nth in (0..self.watching.len()).rev() {
            let number = self.watching[nth];
            let conn = self.conns.get_mut(number).and_then(Option::as_mut);
            let watcher = conn.as_ref().and_then(|conn| conn.watcher.clone());
            let Some((conn, watcher)) = conn.zip(watcher) else {
                self.watching.swap_remove(nth);
                continue;
            };
            if conn.is_sending() {
                continue;
            }
            match conn.send(&watcher.take()) {
                Ok(sent) => {
                    hands.counters.bytes_written.add(sent);
                    let Some(mut conn) = self.conns[number].take() else { continue };
                    conn.took_at = self.turns;
                    let kept = conn.kept();
                    self.keep(&mut conn, kept);
                    self.conns[number] = Some(conn);
                }
                Err(_) => {
                    self.watching.swap_remove(nth);
                    if let Some(mut conn) = self.conns.remove(number) {
                        self.shared.note_end(&conn, "error");
                        self.forget(number, &mut conn);
                    }
                }
            }
        }
    }

    /// Ignores what a watcher sends, up to its end.
    pub(super) fn ignore(&mut self, conn: &mut Conn) -> io::Result<Fate> {
        match conn.stream.read(&mut self.read) {
            // See `Worker::serve`.
            Err(e) if e.kind() == ErrorKind::WouldBlock && conn.has_end => Ok(Fate::Again),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Fate::Waits),
            Err(e) if e.kind() != ErrorKind::Interrupted => Err(e),
            Ok(0) => Ok(Fate::Ends),
            _ => Ok(Fate::Again),
        }
    }
}
