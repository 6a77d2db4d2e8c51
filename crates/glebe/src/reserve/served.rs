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
use std::time::{Duration, Instant};

use super::ReserveError;
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::socket::{connect, send_all, Peer};
use glebe_os::internal::sys::processes::process::effective_user;

pub(super) const HEAD: &str = "glebe-stats/1";
pub(super) const REQUEST_MAX: usize = 32;

/// Longest wait for a connection, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 1 << 20;
const HEAD_MAX: u64 = 64;

const RUN_DIR: &str = "/run";
const ROOT_DIR: &str = "/run/glebe";
const USERS_DIR: &str = "/run/user";
/// The units of `glebe serve` have this runtime directory, so that a service of any user has one.
const SERVICE: &str = "glebe-serve";

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

/// Returns the usual directories of sockets: this process's own, root's, all users', and those of
/// the services `glebe-serve`. A directory with several names is listed once.
#[must_use]
pub fn dirs() -> Vec<PathBuf> {
    let mut dirs = dirs_below(Path::new(RUN_DIR));
    dirs.extend(runtime_dir().map(|dir| dir.join("glebe")));
    distinct(dirs)
}

fn distinct(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let real = dirs.into_iter().map(|dir| fs::canonicalize(&dir).unwrap_or(dir));
    let mut dirs: Vec<_> = real.collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

fn dirs_below(run: &Path) -> Vec<PathBuf> {
    let users = fs::read_dir(run.join("user")).into_iter().flatten().flatten();
    let all = users.map(|user| user.path()).chain([run.to_owned()]);
    all.flat_map(|dir| [dir.join("glebe"), dir.join(SERVICE).join("glebe")]).collect()
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
        Ok(self.answer(form)?.map(|(text, _)| text))
    }

    /// Returns the statistics as [`Served::read`] does, and the process that listens. The kernel
    /// tells the process, so a false name of the socket does not change it.
    ///
    /// # Errors
    /// As of [`Served::read`].
    pub fn answer(&self, form: Form) -> Result<Option<(String, Peer)>, OsError> {
        match self.ask(form) {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            // The process has ended, but a forked child may still hold its socket.
            Err(_) if !fs::exists(format!("/proc/{}", self.pid)).unwrap_or(true) => Ok(None),
            Err(_) if !fs::exists(&self.path).unwrap_or(true) => Ok(None),
            Err(e) => Err(OsError::new("ask for statistics", self.path.display().to_string(), e)),
        }
    }

    fn ask(&self, form: Form) -> io::Result<(String, Peer)> {
        let stream = connect(&self.path, PATIENCE)?;
        let peer = Peer::of(&stream)?;
        send_all(&stream, form.request().as_bytes())?;
        let wrong = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        let mut reader = BufReader::new(Until { stream, end: Instant::now() + PATIENCE });
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
            "ok" => Ok((body, peer)),
            _ => Err(wrong(format!("refused: {body}"))),
        }
    }
}

/// A stream whose reads all end at one time, however few bytes each of them returns.
struct Until {
    stream: UnixStream,
    end: Instant,
}

impl Read for Until {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let rest = self.end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(Some(rest))?;
        self.stream.read(bytes)
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, reserve {}", self.pid, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_directories_beside_those_of_users() {
        let scratch = glebe_testing::Scratch::new("dirs");
        let run = scratch.path();
        fs::create_dir_all(run.join("user/7")).unwrap();
        let wanted = ["user/7/glebe", "user/7/glebe-serve/glebe", "glebe", "glebe-serve/glebe"];
        assert_eq!(dirs_below(run), wanted.map(|dir| run.join(dir)));
        let all = dirs();
        assert!(["/run/glebe", "/run/glebe-serve/glebe"].iter().all(|it| all.contains(&it.into())));
    }

    #[test]
    fn a_directory_with_two_names_is_one() {
        let scratch = glebe_testing::Scratch::new("names");
        let run = fs::canonicalize(scratch.path()).unwrap().join("run");
        let link = scratch.path().join("link");
        fs::create_dir_all(run.join("glebe")).unwrap();
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let given = ["none", "glebe"].map(|name| run.join(name));
        let all = given.iter().cloned().chain([link.join("glebe")]).collect();
        let [missing, dir] = given;
        assert_eq!(distinct(all), [dir, missing]);
    }

    #[test]
    fn a_slow_drip_has_one_end() {
        use std::io::Write;
        let (stream, mut drip) = UnixStream::pair().unwrap();
        let patience = Duration::from_millis(100);
        let dripping = std::thread::spawn(move || while drip.write_all(b"x").is_ok() {});
        let mut reader = Until { stream, end: Instant::now() + patience };
        let error = std::io::copy(&mut reader, &mut std::io::sink()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(reader);
        dripping.join().unwrap();
    }
}
