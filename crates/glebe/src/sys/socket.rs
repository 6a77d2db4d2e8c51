//! Writing to a local socket without the signal that a closed one brings.
//!
//! A library may not rely on its host to ignore `SIGPIPE`. Source: send(2).
//!
//! # Safety
//! The kernel reads the bytes of the slice given, no more.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Writes all of `bytes`, as patiently as the stream's write timeout says.
///
/// # Errors
/// The kernel's; `EPIPE` where the reader has gone.
pub(crate) fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (fd, len) = (stream.as_raw_fd(), bytes.len());
        // SAFETY: the descriptor is open as long as `stream` is borrowed; `len` bytes are there.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), len, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;

    #[test]
    fn a_closed_reader_is_an_error_and_no_signal() {
        let (writer, reader) = UnixStream::pair().unwrap();
        drop(reader);
        // SAFETY: the child sets a signal's action, sends, and compares numbers.
        let error = unsafe {
            in_child(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                send_all(&writer, b"x").is_err_and(|e| e.raw_os_error() == Some(libc::EPIPE))
            })
        };
        assert!(error, "it was sent, or a signal ended the child");
    }

    #[test]
    fn more_than_a_buffer_arrives_whole() {
        use std::io::Read;
        let (writer, mut reader) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&writer, &sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            reader.read_to_end(&mut got).unwrap();
        });
        assert!(sent == got);
    }
}
