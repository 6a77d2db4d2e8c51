//! [`Load`]: something else for the machine to do while requests are timed.
//!
//! A [`Background`], started again whenever it ends, in a process group of its own; nothing where
//! there is none. It ends, with all it started, when the load is dropped.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;

use super::background::Background;
use super::usage::kill_group;

/// A load that lasts as long as this lives.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    pub(super) what: String,
}

impl Load {
    /// Starts `background` and keeps it going; an error if it cannot be started.
    pub(super) fn start(background: Option<&Arc<Background>>) -> Result<Self, OsError> {
        let stop = Arc::<AtomicBool>::default();
        let Some(background) = background.map(Arc::clone) else {
            return Ok(Self { stop, thread: None, what: "none".into() });
        };
        let what = format!("{}, again and again", background.what());
        // The first one here, so that what cannot be started is an error.
        let first = background.spawn()?;
        let stops = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || repeat(first, &background, &stops)));
        Ok(Self { stop, thread, what })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A load that panicked has ended, which is all that is wanted.
            let _ = thread.join();
        }
    }
}

fn repeat(mut child: Child, background: &Background, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // Also a pause between starts of a command that ends at once.
        std::thread::sleep(Duration::from_millis(10));
        if !matches!(child.try_wait(), Ok(None)) {
            match background.spawn() {
                Ok(next) => child = next,
                Err(_) => return,
            }
        }
    }
    kill_group(&child);
    let _ = child.wait();
}
