//! [`Signals`] makes SIGTERM, SIGINT and SIGHUP readable from a descriptor.
//!
//! SIGTERM and SIGINT end a purger. The second such signal kills the purger at once, even if a
//! hostile user's file slows the checks.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

pub struct Signals {
    readable: UnixStream,
    end: Arc<AtomicBool>,
    reopen: Arc<AtomicBool>,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let (readable, sender) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        let (end, reopen) = (Arc::default(), Arc::default());
        for signal in [SIGTERM, SIGINT] {
            // This handler kills the process if `end` is set. The next handler, which runs later,
            // sets `end`, so only a second signal kills.
            flag::register_conditional_default(signal, Arc::clone(&end))?;
            flag::register(signal, Arc::clone(&end))?;
        }
        flag::register(SIGHUP, Arc::clone(&reopen))?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { readable, end, reopen })
    }

    pub fn is_end(&self) -> bool {
        self.end.load(Ordering::Acquire)
    }

    /// Returns true once after SIGHUP, which requests to open the files anew.
    pub fn is_reopen(&self) -> bool {
        // Discards the bytes, because the flags say which signals arrived.
        while (&self.readable).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        self.reopen.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
