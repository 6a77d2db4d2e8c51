//! `served` finds the sockets of reserves in running processes, and asks them for statistics.
//!
//! Each reserve with [`Reserve::serve_stats`](super::Reserve::serve_stats) has a socket
//! `PID.NUMBER.sock`, for its user and root only:
//!
//! ```text
//! request   "text" | "json" | "openmetrics", then a newline, in one write
//! answer    "glebe-stats/1 " ("ok" | "error") " " body's length in bytes "\n", then the body
//! ```
//!
//! A socket without a listener was left by an ended process.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ReserveError;
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::socket::send_all;
use glebe_os::internal::sys::processes::process::effective_user;

pub(super) const HEAD: &str = "glebe-stats/1";
pub(super) const REQUEST_MAX: usize = 32;

const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 1 << 20;
const HEAD_MAX: u64 = 64;

const ROOT_DIR: &str = "/run/glebe";
const USERS_DIR: &str = "/run/user";

/// [`Form`] is the format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Aligned text, the `Display` form of [`Stats`](super::Stats).
    Text,
    /// JSON: [`Stats::to_json`](super::Stats::to_json).
    Json,
    /// OpenMetrics: [`Stats::to_openmetrics`](super::Stats::to_openmetrics) with the labels `pid`
    /// and `reserve`.
    OpenMetrics,
}

impl Form {
    pub(super) const ALL: [Self; 3] = [Self::Text, Self::Json, Self::OpenMetrics];

    pub(super) fn request(self) -> &'static str {
        match self {
            Self::Text => "text\n",
            Self::Json => "json\n",
            Self::OpenMetrics => "openmetrics\n",
        }
    }
}

pub(crate) fn own_dir() -> Result<PathBuf, ReserveError> {
    let user = effective_user();
    let own = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
    if let Some(dir) = runtime_dir().filter(|dir| own(dir)) {
        return Ok(dir.join("glebe"));
    }
    if user == 0 {
        return Ok(ROOT_DIR.into());
    }
    let dir = Path::new(USERS_DIR).join(user.to_string());
    if own(&dir) {
        return Ok(dir.join("glebe"));
    }
    Err(ReserveError::NoRuntimeDir { user })
}

fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Returns the usual directories of sockets: this process's own, root's and all users'.
#[must_use]
pub fn dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = runtime_dir().map(|dir| dir.join("glebe")).into_iter().collect();
    dirs.push(ROOT_DIR.into());
    let users = fs::read_dir(USERS_DIR).into_iter().flatten().flatten();
    dirs.extend(users.map(|user| user.path().join("glebe")));
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Returns the sockets in `dir`, sorted by process and number; none if `dir` does not exist.
///
/// # Errors
/// The error of reading `dir`.
pub fn list(dir: &Path) -> Result<Vec<Served>, OsError> {
    let os = |e| OsError::new("readdir", dir.display().to_string(), e);
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(os)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(os)?.path();
        found.extend(Served::from_path(path));
    }
    found.sort_by_key(|served| (served.pid, served.number));
    Ok(found)
}

/// The socket of one reserve, perhaps of an ended process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pid: u32,
    number: u64,
    path: PathBuf,
}

impl Served {
    fn from_path(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
        let (pid, number) = name.split_once('.')?;
        Some(Self { pid: pid.parse().ok()?, number: number.parse().ok()?, path })
    }

    /// Returns the process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the reserve's number in its process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the statistics now; `None` if the process has ended or dropped the reserve.
    ///
    /// # Errors
    /// The caller may not connect, or the answer is late, incomplete or malformed.
    pub fn read(&self, form: Form) -> Result<Option<String>, OsError> {
        match self.ask(form) {
            Ok(body) => Ok(Some(body)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            // The process has ended, but a forked child may still hold its socket.
            Err(_) if !fs::exists(format!("/proc/{}", self.pid)).unwrap_or(true) => Ok(None),
            Err(_) if !fs::exists(&self.path).unwrap_or(true) => Ok(None),
            Err(e) => Err(OsError::new("ask for statistics", self.path.display().to_string(), e)),
        }
    }

    fn ask(&self, form: Form) -> io::Result<String> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        send_all(&stream, form.request().as_bytes())?;
        let wrong = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        let mut reader = BufReader::new(&stream);
        let mut head = String::new();
        reader.by_ref().take(HEAD_MAX).read_line(&mut head)?;
        let words: Vec<&str> = head.split_ascii_whitespace().collect();
        let [HEAD, outcome, len] = words[..] else {
            return Err(wrong(format!("the answer begins {head:?}, not with {HEAD}")));
        };
        let len: u64 = len.parse().map_err(|e| wrong(format!("length {len:?}: {e}")))?;
        if len > ANSWER_MAX {
            return Err(wrong(format!("an answer of {len} bytes; at most {ANSWER_MAX}")));
        }
        let mut body = String::new();
        let got = reader.take(len).read_to_string(&mut body)?;
        if got as u64 != len {
            return Err(wrong(format!("the answer ends after {got} of {len} bytes")));
        }
        // Refuses control characters, because another process wrote this text for a terminal.
        if body.contains(|c: char| c.is_control() && c != '\n') {
            return Err(wrong("the answer has control characters".into()));
        }
        match outcome {
            "ok" => Ok(body),
            _ => Err(wrong(format!("refused: {body}"))),
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, reserve {}", self.pid, self.number)
    }
}
