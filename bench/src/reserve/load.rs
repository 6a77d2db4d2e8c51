//! [`Load`]: something else for the machine to do while requests are timed.
//!
//! A [`Background`], started again whenever it ends, in a process group of its own; where there is
//! none, threads that write to memory of their own. It ends, with all it started, when the load is
//! dropped.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::background::Background;
use super::fork::kill_group;
use super::keyed::Random;

const THREADS: u64 = 2;
const TOUCHED: Bytes = Bytes::mib(64);

/// A load that lasts as long as this lives.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    pub(super) what: String,
}

impl Load {
    /// Starts `background` and keeps it going.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(background: Option<&Arc<Background>>) -> Result<Self, OsError> {
        let what = match background {
            Some(background) => format!("{}, again and again", background.what()),
            None => format!("{THREADS} threads writing to {TOUCHED} each"),
        };
        let mut load = Self { stop: Arc::default(), threads: Vec::new(), what };
        let Some(background) = background else {
            for id in 0..THREADS {
                load.thread(move |stop| touch(id, stop))?;
            }
            return Ok(load);
        };
        // The first one here, so that what cannot be started is an error.
        let first = background.spawn()?;
        let background = Arc::clone(background);
        load.thread(move |stop| repeat(first, &background, stop))?;
        Ok(load)
    }

    fn thread(&mut self, body: impl FnOnce(&AtomicBool) + Send + 'static) -> Result<(), OsError> {
        let stop = Arc::clone(&self.stop);
        let thread = Builder::new().spawn(move || body(&stop));
        self.threads.push(thread.map_err(|e| OsError::new("clone", "a load", e))?);
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A load that panicked has ended, which is all that is wanted.
            let _ = thread.join();
        }
    }
}

fn touch(id: u64, stop: &AtomicBool) {
    let mut random = Random::new(id << 40);
    let mut memory = vec![0_u8; TOUCHED.as_usize()];
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..1024 {
            let page = random.below(TOUCHED.pages_down(page_size()).get());
            let at = page as usize * page_size().bytes().as_usize();
            memory[at..at + 64].fill(page as u8);
        }
    }
    std::hint::black_box(&memory);
}

fn repeat(first: Child, background: &Background, stop: &AtomicBool) {
    let mut child = first;
    loop {
        if stop.load(Ordering::Relaxed) {
            kill_group(&child);
            let _ = child.wait();
            return;
        }
        // Also a pause between starts of a command that ends at once.
        std::thread::sleep(Duration::from_millis(10));
        if !matches!(child.try_wait(), Ok(None)) {
            match background.spawn() {
                Ok(next) => child = next,
                Err(_) => return,
            }
        }
    }
}
