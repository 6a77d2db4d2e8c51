//! [`Plain`] reads and writes files without allocating and without a lock: in a signal handler, in
//! malloc, at exit.
//!
//! Interrupted calls are repeated. All calls keep errno. Source: signal-safety(7).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use super::broken_pipe;
use crate::internal::sys::errno;

/// An open file, closed when dropped unless it is a standard file.
#[derive(Debug)]
pub struct Plain {
    fd: i32,
}

pub static ERRORS: Plain = Plain { fd: libc::STDERR_FILENO };

impl Plain {
    #[must_use]
    pub fn open(path: &CStr) -> Option<Self> {
        Self::with(path, libc::O_RDONLY).ok()
    }

    /// Creates a file with mode 0600, or empties an existing file. Refuses a symbolic link, a file
    /// with a second name, and anything but a regular file.
    pub fn create(path: &CStr) -> Result<Self, i32> {
        let file = Self::with(path, libc::O_WRONLY | libc::O_CREAT | libc::O_NONBLOCK)?;
        let kept = errno::get();
        // SAFETY: `file` is open; the status is a local.
        let refused = unsafe {
            let mut status = std::mem::zeroed::<libc::stat>();
            if libc::fstat(file.fd, &mut status) != 0 {
                errno::get()
            } else if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_nlink != 1 {
                libc::EPERM
            } else if libc::ftruncate(file.fd, 0) != 0 {
                errno::get()
            } else {
                0
            }
        };
        errno::set(kept);
        if refused == 0 {
            Ok(file)
        } else {
            Err(refused)
        }
    }

    fn with(path: &CStr, flags: i32) -> Result<Self, i32> {
        let kept = errno::get();
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let answer = loop {
            // SAFETY: `path` ends with a zero byte.
            let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
            if fd >= 0 {
                break Ok(Self { fd });
            }
            if errno::get() != libc::EINTR {
                break Err(errno::get());
            }
        };
        errno::set(kept);
        answer
    }
}

/// Standard error at the time of `new`. The program may later close it, or open another file in its
/// place.
#[derive(Debug)]
pub struct KeptErrors {
    copy: i32,
    identity: (libc::dev_t, libc::ino_t),
}

/// Lowest numbers for the copy, tried in turn: a limit may forbid high numbers, and programs may
/// expect low numbers to be free.
const COPY_MIN: [i32; 3] = [900, 200, 50];

impl KeptErrors {
    #[must_use]
    pub fn new() -> Option<Self> {
        let kept = errno::get();
        let identity = identity_of(libc::STDERR_FILENO);
        let copied = |least: &i32| {
            // SAFETY: the call takes only numbers.
            let copy = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, *least) };
            (copy >= 0).then_some(copy)
        };
        let copy = COPY_MIN.iter().find_map(copied).unwrap_or(-1);
        errno::set(kept);
        Some(Self { copy, identity: identity? })
    }

    #[must_use]
    pub fn file(&self) -> Option<Borrowed> {
        let kept = errno::get();
        let mut all = [libc::STDERR_FILENO, self.copy].into_iter();
        let found = all.find(|&fd| identity_of(fd) == Some(self.identity));
        errno::set(kept);
        Some(Borrowed(ManuallyDrop::new(Plain { fd: found? })))
    }
}

#[derive(Debug)]
pub struct Borrowed(ManuallyDrop<Plain>);

impl Deref for Borrowed {
    type Target = Plain;

    fn deref(&self) -> &Plain {
        &self.0
    }
}

fn identity_of(fd: i32) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: the kernel fills the local.
    unsafe {
        let mut status = std::mem::zeroed::<libc::stat>();
        (libc::fstat(fd, &mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.fd > libc::STDERR_FILENO {
            let kept = errno::get();
            // SAFETY: the descriptor is this value's own.
            unsafe { libc::close(self.fd) };
            errno::set(kept);
        }
    }
}

/// Returns the number of bytes read; 0 at the end of the file or on failure.
pub fn read(file: &Plain, buf: &mut [u8]) -> usize {
    let kept = errno::get();
    let read = loop {
        // SAFETY: the kernel writes within the slice.
        let read = unsafe { libc::read(file.fd, buf.as_mut_ptr().cast(), buf.len()) };
        if read >= 0 || errno::get() != libc::EINTR {
            break usize::try_from(read).unwrap_or(0);
        }
    };
    errno::set(kept);
    read
}

/// Writes all of `bytes`, unless a call fails. Raises no SIGPIPE.
pub fn write(file: &Plain, mut bytes: &[u8]) {
    let kept = errno::get();
    let pipe = broken_pipe::Held::new();
    while !bytes.is_empty() {
        // SAFETY: the kernel reads within the slice.
        let wrote = unsafe { libc::write(file.fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(wrote) {
            Ok(wrote) => bytes = &bytes[wrote..],
            Err(_) if errno::get() == libc::EINTR => {}
            Err(_) => break,
        }
    }
    drop(pipe);
    errno::set(kept);
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    #[test]
    fn a_report_replaces_an_older_one_and_follows_no_link() {
        let dir = std::env::temp_dir().join(format!("glebe-plain-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let named = |name: &str| CString::new(dir.join(name).to_str().unwrap()).unwrap();
        for text in ["a long report", "short"] {
            write(&Plain::create(&named("report")).unwrap(), text.as_bytes());
            assert_eq!(fs::read_to_string(dir.join("report")).unwrap(), text);
        }
        let mode = fs::metadata(dir.join("report")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        symlink(dir.join("report"), dir.join("link")).unwrap();
        fs::hard_link(dir.join("report"), dir.join("hard")).unwrap();
        errno::set(7);
        assert_eq!(Plain::create(&named("link")).unwrap_err(), libc::ELOOP);
        assert_eq!(Plain::create(&named("hard")).unwrap_err(), libc::EPERM);
        assert_eq!(Plain::create(&named("")).unwrap_err(), libc::EISDIR);
        assert_eq!(Plain::create(c"/dev/null").unwrap_err(), libc::EPERM);
        assert!(Plain::open(&named("none")).is_none());
        assert_eq!(errno::get(), 7);
        assert_eq!(fs::read_to_string(dir.join("report")).unwrap(), "short");
        fs::remove_dir_all(&dir).unwrap();
    }
}
