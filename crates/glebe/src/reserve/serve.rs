//! The thread that answers who asks for a reserve's statistics, and its socket.
//!
//! One socket a reserve, in a directory that nobody but its owner can enter. The thread sleeps
//! in `accept`, holds the reserve only while it copies the statistics, and ends with it: the end
//! of a [`Serving`] shuts the socket down and removes it. A forked child has no such thread and,
//! since nothing of the reserve is dropped there, leaves the socket alone. The exchange is drawn
//! in [`super::served`].

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::served::{Form, HEAD, REQUEST_MAX};
use super::shared::Weak;
use super::{Error, Inner};
use crate::error::OsError;
use crate::sync::{MappedWord, Ordering};
use crate::sys::process::effective_user;
use crate::sys::socket::send_all;

/// How long one who asks may keep the thread from others, at each step.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to rest when the process is short of descriptors or memory.
const REST: Duration = Duration::from_millis(100);
const STACK: usize = 256 << 10;
/// The only mode of a directory of sockets.
const DIR_MODE: u32 = 0o700;

/// A reserve's socket; its end is the end of the thread.
#[derive(Debug)]
pub(super) struct Serving {
    path: PathBuf,
    /// The listening socket again, as what can be shut down.
    waker: UnixStream,
}

impl Serving {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The socket may have been removed by others, and then there is nothing left to do.
        let _ = fs::remove_file(&self.path);
        let _ = self.waker.shutdown(Shutdown::Both);
    }
}

/// Starts to serve the statistics in `dir`, which is made if its parent is there.
pub(super) fn start(weak: Weak<Inner>, dir: &Path) -> Result<Serving, Error> {
    prepare(dir)?;
    let (listener, path, number) = bind(dir)?;
    let os = |call, e| Error::Os(OsError::new(call, path.display().to_string(), e));
    let waker = match listener.try_clone() {
        Ok(clone) => UnixStream::from(OwnedFd::from(clone)),
        Err(e) => {
            let _ = fs::remove_file(&path);
            return Err(os("dup", e));
        }
    };
    let serving = Serving { path: path.clone(), waker };
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(|e| os("chmod", e))?;
    let thread = thread::Builder::new().name("glebe-stats".to_owned()).stack_size(STACK);
    thread
        .spawn(move || serve(&listener, &weak, number))
        .map_err(|e| Error::Os(OsError::new("clone", "a thread that serves statistics", e)))?;
    Ok(serving)
}

/// Makes `dir`, or sees that nobody else can enter it: so none can connect to a new socket
/// before its mode is set.
fn prepare(dir: &Path) -> Result<(), Error> {
    let os = |call, e| Error::Os(OsError::new(call, dir.display().to_string(), e));
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(os("mkdir", e)),
        _ => {}
    }
    let meta = fs::symlink_metadata(dir).map_err(|e| os("lstat", e))?;
    let (user, owner, mode) = (effective_user(), meta.uid(), meta.mode());
    if !meta.is_dir() || owner != user || mode & 0o077 != 0 {
        return Err(Error::SharedDir { path: dir.into(), owner, mode, user });
    }
    Ok(())
}

/// Binds the next name of this process. One that is taken was left by an earlier process of the
/// same number, and is replaced, unless somebody answers there, from another namespace.
fn bind(dir: &Path) -> Result<(UnixListener, PathBuf, u64), Error> {
    static NEXT: MappedWord = MappedWord::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}.{number}.sock", std::process::id()));
        let mut bound = UnixListener::bind(&path);
        if in_use(&bound) && UnixStream::connect(&path).is_err() {
            let _ = fs::remove_file(&path);
            bound = UnixListener::bind(&path);
        }
        match bound {
            Ok(listener) => return Ok((listener, path, number)),
            Err(_) if in_use(&bound) => {}
            Err(e) => return Err(Error::Os(OsError::new("bind", path.display().to_string(), e))),
        }
    }
}

fn in_use<T>(bound: &io::Result<T>) -> bool {
    bound.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse)
}

fn serve(listener: &UnixListener, weak: &Weak<Inner>, number: u64) {
    loop {
        match listener.accept() {
            // Who asks may leave at any time.
            Ok((stream, _)) => drop(answer(&stream, weak, number)),
            // Shut down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            Err(_) => thread::sleep(REST),
        }
        if weak.upgrade().is_none() {
            return;
        }
    }
}

fn answer(mut stream: &UnixStream, weak: &Weak<Inner>, number: u64) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST_MAX];
    let len = stream.read(&mut request)?;
    let Some(inner) = weak.upgrade() else { return Ok(()) };
    let stats = inner.stats();
    drop(inner); // a slow reader keeps no reserve alive
    let form = Form::ALL.into_iter().find(|form| form.request().as_bytes() == &request[..len]);
    let labels = || vec![("pid", std::process::id().to_string()), ("reserve", number.to_string())];
    let (outcome, body) = match form {
        Some(Form::Text) => ("ok", stats.to_string()),
        Some(Form::Json) => ("ok", stats.to_json()),
        Some(Form::OpenMetrics) => ("ok", stats.openmetrics_with(labels())),
        None => ("error", "the form asked for is not known here".to_owned()),
    };
    send_all(stream, format!("{HEAD} {outcome} {}\n{body}", body.len()).as_bytes())
}
