//! [`Log`] writes lines to standard error. It never waits for their reader, because recalls do not
//! wait either: lines that have no room are left out and counted.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::line::printable;

/// Most characters of a line. A pipe that is ready has room for it, and for the count.
const LINE_MAX: usize = 900;

#[derive(Debug, Default)]
pub(crate) struct Log {
    left_out: u64,
}

impl Log {
    /// Writes a line of `from`.
    pub(crate) fn line(&mut self, from: &str, text: &str) {
        self.write(&mut io::stderr(), from, text);
    }

    fn write(&mut self, out: &mut (impl Write + AsFd), from: &str, text: &str) {
        if !has_room(out) {
            self.left_out += 1;
            return;
        }
        let mut line = format!("{from}: {}\n", printable(text, LINE_MAX));
        if self.left_out > 0 {
            line.insert_str(0, &format!("{from}: {} lines left out\n", self.left_out));
            self.left_out = 0;
        }
        // Nobody is left to hear of a log that has ended.
        let _ = out.write_all(line.as_bytes());
    }
}

/// Returns true if a short write does not wait: there is room, or nobody reads.
fn has_room(out: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::OUT)];
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_stops_nobody() {
        let (mut ours, mut reader) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        let mut len = 0;
        while let Ok(more) = ours.write(&[b'x'; 512]) {
            len += more;
        }
        ours.set_nonblocking(false).expect("a socket");
        let mut log = Log::default();
        for _ in 0..3 {
            log.write(&mut ours, "glebe lend", "nobody reads this");
        }
        reader.read_exact(&mut vec![0; len]).expect("the bytes before");
        log.write(&mut ours, "glebe lend", "on\x1b[31m");
        drop(ours);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(text, "glebe lend: 3 lines left out\nglebe lend: on[31m\n");
    }
}
