//! [`Scrapes`] answers HTTP requests for `/metrics` on one thread, and closes each connection after
//! its answer.
//!
//! No client can hold the thread or much memory: it never blocks on a socket, and a connection
//! lives for [`PATIENCE`] at most. If [`CONNS`] are open, a new one replaces the oldest. A request
//! head has at most [`HEAD_MAX`] bytes, and bodies are not read. A text is made at most once in
//! [`FRESH`], whatever clients ask. Source: RFC 9112; OpenMetrics 1.0.0; Prometheus' text format
//! 0.0.4.

mod exchange;
mod plain;

use std::io::{self, ErrorKind, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use exchange::{Exchange, Then};

/// Most connections at a time.
pub const CONNS: usize = 16;
/// Longest life of a connection.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a request's head.
pub const HEAD_MAX: usize = 8 << 10;
/// The server makes a new text only if the last one is older.
pub const FRESH: Duration = Duration::from_millis(100);
/// Pause after a failed accept, for example without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

const LISTENER: Token = Token(usize::MAX);
const WAKE: Token = Token(usize::MAX - 1);

/// A running answerer of scrapes. The drop ends it.
#[derive(Debug)]
pub struct Scrapes {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Scrapes {
    /// Answers requests at `listener` with `render`, which returns OpenMetrics text with its end
    /// mark. A client that does not accept OpenMetrics gets Prometheus' text format.
    ///
    /// # Errors
    /// If the thread or its descriptors cannot be had.
    pub fn start(
        listener: TcpListener,
        render: impl FnMut() -> String + Send + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let text = Text { render, last: None };
        let mut desk = Desk { poll, listener, text, open: Slab::new(), may_wait: false };
        let run = move || {
            if let Err(error) = desk.run() {
                // A log that nobody reads ends no thread.
                let _ =
                    writeln!(io::stderr(), "glebe serve: metrics are no longer served: {error}");
            }
        };
        let thread = thread::Builder::new().name("glebe-metrics".into()).spawn(run)?;
        Ok(Self { waker, thread: Some(thread) })
    }
}

impl Drop for Scrapes {
    fn drop(&mut self) {
        // Without the wake, a join would wait forever.
        if self.waker.wake().is_ok() {
            // The message of a panic was already printed.
            drop(self.thread.take().map(JoinHandle::join));
        }
    }
}

struct Text<R> {
    render: R,
    last: Option<(Instant, String)>,
}

impl<R: FnMut() -> String> Text<R> {
    fn now(&mut self) -> &str {
        if self.last.as_ref().is_none_or(|(made, _)| made.elapsed() > FRESH) {
            let text = (self.render)();
            self.last = Some((Instant::now(), text));
        }
        self.last.as_ref().map_or("", |(_, text)| text)
    }
}

struct Desk<R> {
    poll: Poll,
    listener: mio::net::TcpListener,
    text: Text<R>,
    open: Slab<Exchange>,
    /// Connections may wait of which no event comes: an accept failed, or a call took many.
    may_wait: bool,
}

impl<R: FnMut() -> String> Desk<R> {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(2 * CONNS);
        loop {
            let ends = self.open.iter().map(|(_, one)| one.end).min();
            let wait = ends.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = if self.may_wait { Some(PAUSE) } else { wait };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    WAKE => return Ok(()),
                    LISTENER => self.accept(),
                    Token(key) => self.advance(key),
                }
            }
            if self.may_wait {
                self.accept();
            }
            let now = Instant::now();
            self.open.retain(|_, one| one.end > now);
        }
    }

    fn accept(&mut self) {
        self.may_wait = true;
        for _ in 0..CONNS {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.may_wait = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            while self.open.len() >= CONNS {
                let oldest = self.open.iter().min_by_key(|(_, one)| one.end).map(|(key, _)| key);
                drop(oldest.map(|key| self.open.remove(key)));
            }
            let entry = self.open.vacant_entry();
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, Token(entry.key()), both).is_ok() {
                entry.insert(Exchange::new(stream, Instant::now() + PATIENCE));
            }
        }
    }

    fn advance(&mut self, key: usize) {
        // An event may belong to a connection that was just replaced.
        let Some(one) = self.open.get_mut(key) else { return };
        if one.advance(&mut || self.text.now().to_owned()) == Then::Close {
            self.open.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
