//! [`Trigger`] is a descriptor that signals memory pressure: threads waited for memory, or the
//! service manager wants memory back.
//!
//! The kernel's file signals urgent events when tasks stalled for a given part of a window. Without
//! CAP_SYS_RESOURCE the window must be a multiple of 2 s. A service manager may name a file, FIFO
//! or socket in `MEMORY_PRESSURE_WATCH`. [`Trigger::open`] first writes the bytes of
//! `MEMORY_PRESSURE_WRITE` (base 64) there. Source: accounting/psi, systemd.io/MEMORY_PRESSURE.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::files::epoll::Wakes;
use crate::internal::sys::files::file;

/// Asks for an event when some task stalled for 100 ms within 2 s.
const STALL: &[u8] = b"some 100000 2000000\0";
const SYSTEM: &str = "proc/pressure/memory";
const GROUP: &str = "memory.pressure";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsiWatch {
    pub path: PathBuf,
    pub write: Vec<u8>,
}

impl PsiWatch {
    pub fn system(root: &Path) -> Self {
        Self { path: root.join(SYSTEM), write: STALL.to_vec() }
    }

    pub fn group(dir: &Path) -> Self {
        Self { path: dir.join(GROUP), write: STALL.to_vec() }
    }

    /// Returns `None` if `watch` is not set, an error if `watch` forbids watching or a value is
    /// malformed.
    pub fn named(watch: Option<&OsStr>, write: Option<&OsStr>) -> Result<Option<Self>, OsError> {
        let refused = |what: &str, why: String| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            OsError::new("getenv", what, source)
        };
        let Some(watch) = watch else { return Ok(None) };
        let path = Path::new(watch);
        if path == Path::new("/dev/null") {
            let why = "it is /dev/null: memory pressure is not to be watched".to_owned();
            return Err(refused("MEMORY_PRESSURE_WATCH", why));
        }
        if !path.is_absolute() {
            let why = format!("{} is not absolute", path.display());
            return Err(refused("MEMORY_PRESSURE_WATCH", why));
        }
        let text = write.map(OsStr::as_encoded_bytes).unwrap_or_default();
        let write = decoded(text).ok_or_else(|| {
            let why = format!("{:?} is not base 64", String::from_utf8_lossy(text));
            refused("MEMORY_PRESSURE_WRITE", why)
        })?;
        Ok(Some(Self { path: path.to_owned(), write }))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub had_bytes: bool,
    /// True at the end of the file or after a failure.
    pub is_over: bool,
}

#[derive(Debug)]
pub struct Trigger {
    file: File,
    wakes: Wakes,
}

impl Trigger {
    pub fn open(watch: &PsiWatch) -> Result<Self, OsError> {
        let refused = |call, source| OsError::new(call, watch.path.display().to_string(), source);
        let kind = file::metadata_of(&watch.path).map_err(|e| refused("stat", e))?.file_type();
        if !(kind.is_socket() || kind.is_fifo() || kind.is_file()) {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "no file, FIFO or socket");
            return Err(refused("open", why));
        }
        let mut file = match kind.is_socket() {
            true => connected(&watch.path).map_err(|e| refused("connect", e))?,
            false => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
                file::open(&watch.path, &options).map_err(|e| refused("open", e))?
            }
        };
        if !watch.write.is_empty() {
            file::write(&mut file, &watch.write).map_err(|e| refused("write", e))?;
        }
        let wakes = if kind.is_file() { Wakes::Urgent } else { Wakes::Readable };
        Ok(Self { file, wakes })
    }

    /// Reads all that a FIFO or a socket holds. The kernel's file needs no reading.
    pub fn drain(&mut self) -> Drained {
        let mut drained = Drained::default();
        let mut buf = [0; 256];
        while self.wakes == Wakes::Readable && !drained.is_over {
            match file::read_part(&mut self.file, &mut buf) {
                Ok(0) => drained.is_over = true,
                Ok(_) => drained.had_bytes = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => drained.is_over = true,
            }
        }
        drained
    }

    pub fn wakes(&self) -> Wakes {
        self.wakes
    }
}

fn connected(path: &Path) -> io::Result<File> {
    crate::internal::sys::fault::point("connect")?;
    let stream = UnixStream::connect(path)?;
    stream.set_nonblocking(true)?;
    Ok(OwnedFd::from(stream).into())
}

impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Decodes base 64 (RFC 4648, section 4).
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if text.len() % 4 != 0 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let len = group.len() * 6 / 8;
        bits <<= (4 - group.len()) * 6;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=len]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(watch: &str, write: &str) -> Result<Option<PsiWatch>, String> {
        let found = PsiWatch::named(Some(watch.as_ref()), Some(write.as_ref()));
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn base_64_is_what_the_standard_says() {
        let table =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")];
        for (text, bytes) in table {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for text in ["Zg", "Zg=", "Z===", "Zm9*", "====", "Zm 9"] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_environment_names_what_to_watch_or_says_not_to() {
        assert_eq!(PsiWatch::named(None, Some("Zg==".as_ref())).unwrap(), None);
        let watch = named("/run/x", "c29tZQA=").unwrap().unwrap();
        assert_eq!((watch.path.to_str(), &watch.write[..]), (Some("/run/x"), &b"some\0"[..]));
        assert!(named("/dev/null", "").unwrap_err().contains("not to be watched"));
        assert!(named("run/x", "").unwrap_err().contains("run/x is not absolute"));
        assert!(named("/run/x", "*").unwrap_err().contains("base 64"));
    }

    #[test]
    fn reading_tells_of_bytes_and_of_the_end() {
        use std::io::Write;
        let (own, mut manager) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let mut trigger = Trigger { file: OwnedFd::from(own).into(), wakes: Wakes::Readable };
        let drained = |had_bytes, is_over| Drained { had_bytes, is_over };
        assert_eq!(trigger.drain(), drained(false, false));
        manager.write_all(b"!").unwrap();
        assert_eq!(trigger.drain(), drained(true, false));
        manager.write_all(b"!").unwrap();
        drop(manager);
        assert_eq!(trigger.drain(), drained(true, true));
    }

    #[test]
    fn no_file_of_another_kind_is_written_to() {
        let error = |path: &str| {
            let watch = PsiWatch { path: path.into(), write: b"x".to_vec() };
            Trigger::open(&watch).unwrap_err().to_string()
        };
        assert!(error("/tmp").contains("no file, FIFO or socket"));
        assert!(error("/dev/zero").contains("no file, FIFO or socket"));
        assert!(error("/nowhere/at/all").contains("stat(/nowhere/at/all)"));
    }
}
