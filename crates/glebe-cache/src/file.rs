//! [`CacheFile`] is a cache's memory where no daemon runs: a volatile file of this user.
//!
//! Each place is a granule of the file, marked while nobody uses it. A purged place reads as zeros.
//!
//! The end of a cache removes the file's name. A process that has the file then opens the next one
//! of this name, if that has the same length; until then it finds no places. A writer looks at each
//! call if the file has its name, a reader every 20 ms.
//!
//! Lock: `shared`. Nobody waits for it, so that a forked child and nested calls cannot hang.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use glebe_lease::internal::PlaceUse;
use glebe_os::error::OsError;
use glebe_os::internal::hash::hash;
use glebe_os::internal::mapping::Part;
use glebe_os::internal::sync::{try_write, MappedWord, Ordering, RwLock, RwLockReadGuard};
use glebe_os::internal::sys::files::{file, private};
use glebe_os::internal::sys::machine::uptime;
use glebe_os::internal::sys::processes::process::effective_user;
use glebe_os::units::Bytes;
use glebe_volatile::internal::{has_contents, has_name, is_marked, mark_present, part_of};
use glebe_volatile::{Error, Order, Priority, Shared};

use crate::error::CacheError;

/// Bytes of a place.
const PLACE: Bytes = Bytes::mib(2);
/// Processes that may use a file at once.
const HOLDERS: u32 = 128;
/// Microseconds between two looks of readers if the file has its name.
const LOOK: u64 = 20_000;
/// Wait for another process that makes the file.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct CacheFile {
    folder: PathBuf,
    path: PathBuf,
    len: Bytes,
    place: Bytes,
    seed: u64,
    /// When somebody looked if the file has its name: microseconds.
    looked: MappedWord,
    /// 1 if `shared` has lost its name.
    is_ended: MappedWord,
    shared: RwLock<Shared>,
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
        mark_all(&shared);
        let (len, place, seed) = (shared.len(), shared.granule(), hash(0, name.as_bytes()));
        let [looked, is_ended] = [uptime::micros(), 0].map(MappedWord::new);
        let shared = RwLock::new(shared);
        Ok(Self { folder, path, len, place, seed, looked, is_ended, shared })
    }

    pub(crate) fn count(&self) -> usize {
        (self.len.get() / self.place.get()) as usize
    }

    pub(crate) fn place(&self) -> Bytes {
        self.place
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn with<R>(
        &self,
        index: usize,
        wanted: PlaceUse,
        work: impl FnOnce(Part<'_>) -> R,
    ) -> Option<R> {
        let shared = self.shared(wanted)?;
        let at = Bytes::new(index as u64 * self.place().get());
        // A pin would give an unused place memory.
        if wanted != PlaceUse::Fill && !has_contents(&shared, at) {
            return None;
        }
        let range = at..at + self.place();
        let pin = shared.pin(range.clone()).ok()?;
        if !pin.lost().is_empty() {
            pin.restored().ok()?;
        }
        let done = part_of(&pin).ok().map(work);
        if !is_marked(&shared, at) {
            // A mark that fails keeps the place from purges, but not from its users.
            let _ = shared.mark(range, Priority::NORMAL, Order::Fifo);
        }
        done
    }

    /// Returns the file that has the cache's name.
    #[inline]
    fn shared(&self, wanted: PlaceUse) -> Option<RwLockReadGuard<'_, Shared>> {
        let (now, last) = (uptime::micros(), self.looked.load(Ordering::Relaxed));
        if wanted != PlaceUse::Read || now.wrapping_sub(last) > LOOK {
            self.looked.store(now, Ordering::Relaxed);
            self.look(wanted == PlaceUse::Fill);
        }
        let shared = try_read(&self.shared)?;
        (self.is_ended.load(Ordering::Acquire) == 0).then_some(shared)
    }

    /// Opens the next file of this name if the cache was ended. With `makes`, makes it.
    fn look(&self, makes: bool) {
        let Some(shared) = try_read(&self.shared) else { return };
        if has_name(&shared) {
            return;
        }
        self.is_ended.store(1, Ordering::Release);
        drop(shared);
        let len = self.len;
        if private::own_dir(&self.folder).is_err() {
            return;
        }
        let Ok(next) = opened_once(&self.path, makes.then_some(len)) else { return };
        if next.len() != len || next.granule() != self.place {
            return;
        }
        mark_all(&next);
        let Some(mut shared) = try_write(&self.shared) else { return };
        // Another thread may have been faster.
        if self.is_ended.load(Ordering::Acquire) == 0 {
            return;
        }
        let last = std::mem::replace(&mut *shared, next);
        self.is_ended.store(0, Ordering::Release);
        drop(shared);
        drop(last);
    }

    pub(crate) fn end(&self) -> Result<(), CacheError> {
        let shared = self.shared(PlaceUse::Change);
        let removed = file::remove(&self.path);
        if let Some(shared) = shared {
            // Only marked places are dropped. If a call fails, values stay until the last process
            // closes the file.
            mark_all(&shared);
            let _ = shared.drop_now(Bytes::ZERO..shared.len());
        }
        removed.map_err(|source| {
            let path = self.path.display().to_string();
            let source = OsError::new("unlink", path.clone(), source);
            CacheError::File { path, source: source.into() }
        })
    }
}

/// Marks all places with memory: the first process that opens a file finds no marks.
fn mark_all(shared: &Shared) {
    // A place whose mark fails can be used, and not purged.
    let _ = mark_present(shared, Priority::NORMAL, Order::Fifo);
}

fn try_read(shared: &RwLock<Shared>) -> Option<RwLockReadGuard<'_, Shared>> {
    match shared.try_read() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn opened(path: &Path, len: Bytes) -> Result<Shared, Error> {
    let begin = Instant::now();
    loop {
        let is_early = |error: &Error| match error {
            // Another process has made the file.
            Error::Os(error) => error.kind() == io::ErrorKind::AlreadyExists,
            Error::BadFile { .. } => true,
            _ => false,
        };
        match opened_once(path, Some(len)) {
            Err(error) if is_early(&error) && begin.elapsed() < PATIENCE => {
                std::thread::sleep(STEP);
            }
            other => return other,
        }
    }
}

/// Opens a file, or makes it if there is none and it has a length.
fn opened_once(path: &Path, len: Option<Bytes>) -> Result<Shared, Error> {
    let options = || Shared::options().granule(PLACE).holders(HOLDERS);
    match (options().open(path), len) {
        (Err(Error::Os(error)), Some(len)) if error.kind() == io::ErrorKind::NotFound => {
            options().create_at(path, len)
        }
        (other, _) => other,
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
