//! The control socket: another process of the same user, or root, takes first-class memory inside
//! the server and gives it back, so that the cache is seen to give way.
//!
//! ```text
//! request   "recall " bytes " " milliseconds, then a newline
//! answer    "ok " bytes taken " " runs " " nanoseconds "\n", at once; or "error " what "\n"
//! ```
//!
//! What was taken is given back after the time, or when the asker has gone. Requests are carried
//! out one after the other.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use glebe::sys::page_size;

use super::Shared;

/// The mode of the socket.
const MODE: u32 = 0o660;
const REQUEST_MAX: u64 = 64;
/// How long a request, or an answer, may take to come.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether the asker, or the server, has gone.
const LOOK: Duration = Duration::from_millis(50);

/// Listens at `path`, by a thread that ends with the server.
pub(super) fn listen(path: &Path, shared: &Arc<Shared>) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    let shared = Arc::downgrade(shared);
    thread::Builder::new().name("glebe-control".into()).spawn(move || serve(&listener, &shared))?;
    Ok(())
}

fn serve(listener: &UnixListener, shared: &Weak<Shared>) {
    loop {
        let accepted = listener.accept();
        let Some(shared) = shared.upgrade() else { return };
        if shared.is_ending.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            // Whoever asked has gone.
            Ok((stream, _)) => drop(answer(stream, &shared)),
            Err(_) => {
                drop(shared);
                thread::sleep(LOOK);
            }
        }
    }
}

fn answer(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new(&stream).take(REQUEST_MAX).read_line(&mut request)?;
    let words: Vec<&str> = request.split_ascii_whitespace().collect();
    let numbers = match words[..] {
        ["recall", bytes, millis] => bytes.parse().ok().zip(millis.parse().ok()),
        _ => None,
    };
    let Some((bytes, millis)) = numbers else {
        return writeln!(&stream, "error not a request: {request:?}");
    };
    let (blocks, took) = match shared.store.recall(bytes) {
        Ok(recalled) => recalled,
        Err(e) => return writeln!(&stream, "error {e}"),
    };
    let taken: u64 = blocks.iter().map(|block| block.pages().bytes(page_size()).get()).sum();
    writeln!(&stream, "ok {taken} {} {}", blocks.len(), took.as_nanos())?;
    stream.set_read_timeout(Some(LOOK))?;
    let end = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < end && !shared.is_ending.load(Ordering::Acquire) {
        match (&stream).read(&mut [0]) {
            Ok(0) => break,
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
            _ => {}
        }
    }
    drop(blocks);
    Ok(())
}

/// What a server took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Bytes.
    pub bytes: u64,
    /// Runs that they are in.
    pub runs: u64,
    /// How long that took.
    pub took: Duration,
}

/// Asks the server at `path` to take `bytes` for so long; `then` is told what it took. Returns when
/// it was given back.
///
/// # Errors
/// If nobody listens there, or the server refuses.
pub fn ask(path: &Path, bytes: u64, time: Duration, then: impl FnOnce(Recalled)) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    writeln!(stream, "recall {bytes} {}", time.as_millis())?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.by_ref().take(1 << 10).read_line(&mut line)?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().map_err(|_| io::Error::other(line.clone()));
    let ["ok", bytes, runs, nanos] = words[..] else {
        return Err(io::Error::other(format!("refused: {}", line.trim_end())));
    };
    let took = Duration::from_nanos(number(nanos)?);
    then(Recalled { bytes: number(bytes)?, runs: number(runs)?, took });
    // Ends when the server has given it back.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(())
}

/// The control sockets in a directory, with the numbers of their processes.
#[must_use]
pub fn in_dir(dir: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let control = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".control")?;
        let pid = name.split('.').next()?.parse().ok()?;
        Some((pid, path))
    };
    entries.filter_map(|entry| control(entry.path())).collect()
}
