//! [`Signals`]: SIGTERM and SIGINT, which end a purger, and SIGHUP; behind a descriptor.
//!
//! The second of those that end it does so at once, as if nobody had waited for them: a file made
//! to be slow must not keep it.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

/// See the module.
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
            // Before it is set: for the second signal alone.
            flag::register_conditional_default(signal, Arc::clone(&end))?;
            flag::register(signal, Arc::clone(&end))?;
        }
        flag::register(SIGHUP, Arc::clone(&reopen))?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { readable, end, reopen })
    }

    /// Whether it is to end.
    pub fn is_end(&self) -> bool {
        self.end.load(Ordering::Acquire)
    }

    /// Whether to open the files anew, once for each request.
    pub fn is_reopen(&self) -> bool {
        // What came is forgotten; the flags tell.
        while (&self.readable).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        self.reopen.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Signals {
    /// Readable once one came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
