//! [`FileLoad`] and [`AnonLoad`]: threads that want memory, for as long as they live.
//!
//! A file load reads a file that is longer than the limit through the page cache, over and over:
//! the kernel can always take back what it read, so that it pushes without ever being in need. An
//! anonymous load allocates, touches and frees memory: what it has the kernel cannot take back, so
//! that its size must leave room. The file is sparse: it takes no room on the disk, and reading it
//! waits for no device. On file systems without a page cache of their own (tmpfs) it pushes
//! nothing, which shows in [`super::Counters::limit_hits`].

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

const BLOCK: Bytes = Bytes::mib(1);
/// Between two rounds of an anonymous load.
const REST: Duration = Duration::from_millis(2);

/// A thread that is told to stop when it is dropped, and waited for.
#[derive(Debug)]
struct Thread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Runs `step` again and again.
    fn start(mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let run = move || {
            while !told.load(Ordering::Relaxed) {
                step();
            }
        };
        Self { stop, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a file through the page cache.
#[derive(Debug)]
pub struct FileLoad {
    _thread: Thread,
}

impl FileLoad {
    /// Begins to read a file of `len` in `dir`, which has no name any more when this returns;
    /// sleeps for `rest` after each megabyte.
    ///
    /// # Errors
    /// If there is no such file to be made.
    pub fn start(dir: &Path, len: Bytes, rest: Duration) -> Result<Self, OsError> {
        let file = nameless(dir, len)?;
        let mut block = vec![0; BLOCK.as_usize()];
        let mut at = 0;
        let step = move || {
            match file.read_at(&mut block, at) {
                Ok(n) if n > 0 => at += n as u64,
                _ => at = 0,
            }
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        };
        Ok(Self { _thread: Thread::start(step) })
    }
}

/// A sparse file of `len` without a name.
pub(crate) fn nameless(dir: &Path, len: Bytes) -> Result<File, OsError> {
    let refused = |source| OsError::new("open", dir.display().to_string(), source);
    let file = tempfile::tempfile_in(dir).map_err(refused)?;
    file.set_len(len.get()).map_err(refused)?;
    Ok(file)
}

/// Allocates and frees.
#[derive(Debug)]
pub struct AnonLoad {
    _thread: Thread,
}

impl AnonLoad {
    /// Begins to allocate `len`, touch every page, rest and free, over and over.
    #[must_use]
    pub fn start(len: Bytes) -> Self {
        let step = move || {
            let page = page_size().bytes().as_usize();
            let mut memory = vec![0_u8; len.as_usize()];
            for byte in memory.iter_mut().step_by(page) {
                *byte = 1;
            }
            black_box(&memory);
            std::thread::sleep(REST);
        };
        Self { _thread: Thread::start(step) }
    }
}
