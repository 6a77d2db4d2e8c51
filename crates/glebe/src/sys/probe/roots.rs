//! [`Roots`]: where `/proc`, `/sys` and `/dev` are, so that a machine can be a directory.
//!
//! Reads and access checks only: nothing here writes. Numbers are decimal as the kernel prints
//! them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::call;

/// The three file systems through which the kernel is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// In place of `/proc`.
    pub proc: PathBuf,
    /// In place of `/sys`.
    pub sys: PathBuf,
    /// In place of `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() }
    }
}

impl Roots {
    /// `proc`, `sys` and `dev` below `dir`.
    #[must_use]
    pub fn below(dir: &Path) -> Self {
        Self { proc: dir.join("proc"), sys: dir.join("sys"), dev: dir.join("dev") }
    }

    /// An absolute path as the kernel prints it (a mount point), below these roots.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
        for (prefix, root) in [("/proc", &self.proc), ("/sys", &self.sys), ("/dev", &self.dev)] {
            if let Ok(rest) = path.strip_prefix(prefix) {
                return root.join(rest);
            }
        }
        path.to_owned()
    }

    pub(super) fn sysctl(&self, name: &str) -> io::Result<String> {
        text(&self.proc.join("sys").join(name))
    }
}

/// The file's text without the surrounding white space.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// The file's text as a number.
pub(super) fn number(path: &Path) -> io::Result<u64> {
    let text = text(path)?;
    text.parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("\"{text}\" is not a number"))
    })
}

/// The choice in brackets of a file such as `always [madvise] never`.
pub(super) fn chosen(path: &Path) -> io::Result<String> {
    let text = text(path)?;
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match inner {
        Some((chosen, _)) => Ok(chosen.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("no choice in \"{text}\""))),
    }
}

/// Names in a directory, sorted; none where it cannot be read.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// `(KiB, name)` of the `hugepages-NkB` directories below `dir`, smallest first.
pub(super) fn page_sizes(dir: &Path) -> Vec<(u64, String)> {
    let mut sizes: Vec<(u64, String)> = names(dir)
        .into_iter()
        .filter_map(|name| {
            let size = name.strip_prefix("hugepages-")?;
            Some((size.strip_suffix("kB")?.parse().ok()?, size.to_owned()))
        })
        .collect();
    sizes.sort();
    sizes
}

/// Whether this process could write the file or directory.
pub(super) fn writable(path: &Path) -> io::Result<()> {
    call::access_write(path)
}

/// Opens a device for reading and writing; never creates it.
pub(super) fn open_device(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// `subject: ENOENT (No such file or directory)`.
pub(super) fn why(subject: impl std::fmt::Display, error: &io::Error) -> String {
    let Some(errno) = error.raw_os_error() else { return format!("{subject}: {error}") };
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::ENODEV => "ENODEV",
        libc::ENXIO => "ENXIO",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::ENOTTY => "ENOTTY",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        _ => return format!("{subject}: {error}"),
    };
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("{subject}: {name} ({text})")
}

/// What gives a system call that was refused: a seccomp profile, where the kernel has no reason of
/// its own to refuse with that number; both where it may be either; else what is needed otherwise.
pub(super) fn remedy(call: &str, error: &io::Error, otherwise: impl Into<String>) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => allow(call),
        Some(libc::ENOSYS) => format!("{}; or {}", otherwise.into(), allow(call)),
        _ => otherwise.into(),
    }
}

/// How a seccomp profile is changed.
pub(super) fn allow(call: &str) -> String {
    format!("allow {call} in the seccomp profile (docker run --security-opt seccomp=PROFILE.json)")
}

/// Whether a seccomp filter decides on system calls of this thread.
pub(super) fn is_filtered(roots: &Roots) -> bool {
    let status = text(&roots.proc.join("thread-self/status")).unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

/// [`why`] of a path.
pub(super) fn why_path(path: &Path, error: &io::Error) -> String {
    why(path.display(), error)
}
