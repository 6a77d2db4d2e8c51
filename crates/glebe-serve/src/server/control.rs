//! [`listen`] serves the control socket. Through the socket, the server's user or group takes
//! first-class memory for a time, to show how the cache gives memory up.
//!
//! ```text
//! request   "recall " bytes " " milliseconds, then a newline
//! answer    "ok " bytes taken " " runs " " nanoseconds "\n", at once; or "error " what "\n"
//! ```
//!
//! The server gives the memory back after the milliseconds, when the client leaves, or when the
//! server ends. It handles one request at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use glebe::page_size;

use super::Shared;

const MODE: u32 = 0o660;
const REQUEST_MAX: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval of checks whether the client has left or the server ends.
const LOOK: Duration = Duration::from_millis(50);

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
            // An error concerns only this client.
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

/// First-class memory that a server took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Bytes.
    pub bytes: u64,
    /// Runs of pages.
    pub runs: u64,
    /// How long taking the memory took.
    pub took: Duration,
}

/// Asks the server at `path` to hold `bytes` for `time`. Calls `then` with the result. Returns when
/// the memory is given back.
///
/// # Errors
/// If no server listens, the server refuses, or the connection fails.
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
    // The server closes the connection after it gives the memory back.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(())
}

/// Returns the control sockets in a directory with their process ids.
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
