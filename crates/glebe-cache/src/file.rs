//! [`CacheFile`] is a cache's memory where no daemon runs: a volatile file of this user.
//!
//! Each place is a granule of the file, marked while nobody uses it. A purged place reads as zeros.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glebe_os::error::OsError;
use glebe_os::internal::hash::hash;
use glebe_os::internal::mapping::Part;
use glebe_os::internal::sys::files::{file, private};
use glebe_os::internal::sys::processes::process::effective_user;
use glebe_os::units::Bytes;
use glebe_volatile::internal::{has_contents, is_marked, mark_present, part_of};
use glebe_volatile::{Error, Order, Priority, Shared};

use crate::error::CacheError;

/// Bytes of a place.
const PLACE: Bytes = Bytes::mib(2);
/// Processes that may use a file at once.
const HOLDERS: u32 = 128;
/// Wait for another process that makes the file.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct CacheFile {
    path: PathBuf,
    shared: Shared,
    seed: u64,
}

impl CacheFile {
    pub(crate) fn open(
        folder: Option<PathBuf>,
        name: &str,
        size: Bytes,
    ) -> Result<Self, CacheError> {
        let folder = folder.unwrap_or_else(usual_folder);
        let shown = || folder.display().to_string();
        let made = private::own_dir(&folder);
        made.map_err(|source| CacheError::Directory { path: shown(), source })?;
        let path = folder.join(file_name(name));
        let places = size.get().div_ceil(PLACE.get());
        let shared = opened(&path, Bytes::new(places * PLACE.get()))
            .map_err(|source| CacheError::File { path: path.display().to_string(), source })?;
        // The first process that opens a file finds no marks. A place whose mark fails can be used,
        // and not purged.
        let _ = mark_present(&shared, Priority::NORMAL, Order::Fifo);
        Ok(Self { path, shared, seed: hash(0, name.as_bytes()) })
    }

    pub(crate) fn count(&self) -> usize {
        (self.shared.len().get() / self.place().get()) as usize
    }

    pub(crate) fn place(&self) -> Bytes {
        self.shared.granule()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn with<R>(
        &self,
        index: usize,
        is_asked: bool,
        work: impl FnOnce(Part<'_>) -> R,
    ) -> Option<R> {
        let at = Bytes::new(index as u64 * self.place().get());
        // A pin would give an unused place memory.
        if !is_asked && !has_contents(&self.shared, at) {
            return None;
        }
        let range = at..at + self.place();
        let pin = self.shared.pin(range.clone()).ok()?;
        if !pin.lost().is_empty() {
            pin.restored().ok()?;
        }
        let done = part_of(&pin).ok().map(work);
        if !is_marked(&self.shared, at) {
            // A mark that fails keeps the place from purges, but not from its users.
            let _ = self.shared.mark(range, Priority::NORMAL, Order::Fifo);
        }
        done
    }

    pub(crate) fn end(&self) -> Result<(), CacheError> {
        let removed = file::remove(&self.path);
        // Only marked places are dropped. If a call fails, values stay until their file's last use.
        let _ = mark_present(&self.shared, Priority::NORMAL, Order::Fifo);
        let _ = self.shared.drop_now(Bytes::ZERO..self.shared.len());
        removed.map_err(|source| {
            let path = self.path.display().to_string();
            let source = OsError::new("unlink", path.clone(), source);
            CacheError::File { path, source: source.into() }
        })
    }
}

fn opened(path: &Path, len: Bytes) -> Result<Shared, Error> {
    let options = || Shared::options().granule(PLACE).holders(HOLDERS);
    let begin = Instant::now();
    loop {
        let is_early = |error: &Error| match error {
            // Another process has made the file, or is about to.
            Error::Os(error) => error.kind() == io::ErrorKind::AlreadyExists,
            Error::BadFile { .. } => true,
            _ => false,
        };
        let opened = match options().open(path) {
            Err(Error::Os(error)) if error.kind() == io::ErrorKind::NotFound => {
                options().create_at(path, len)
            }
            other => other,
        };
        match opened {
            Err(error) if is_early(&error) && begin.elapsed() < PATIENCE => {
                std::thread::sleep(STEP);
            }
            other => return other,
        }
    }
}

fn usual_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("glebe-caches"),
        None => PathBuf::from(format!("/dev/shm/glebe-caches-{}", effective_user())),
    }
}

/// Returns a name without slashes and leading points, different for each name.
fn file_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let shown = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02x}"),
    };
    name.bytes().map(shown).collect()
}
