//! [`Load`]: something else for the machine to do while requests are timed.
//!
//! A [`Background`], started again whenever it ends, in a process group of its own; where there is
//! none, threads that write to memory of their own. It ends, with all it started, when the load is
//! dropped.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::background::Background;
use super::keyed::Random;
use super::usage::kill_group;

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
    /// Starts `background` and keeps it going; an error if it cannot be started.
    pub(super) fn start(background: Option<&Arc<Background>>) -> Result<Self, OsError> {
        let stop = Arc::<AtomicBool>::default();
        let thread = |body: Box<dyn FnOnce(&AtomicBool) + Send>| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || body(&stop))
        };
        let (threads, what) = match background.map(Arc::clone) {
            Some(background) => {
                let what = format!("{}, again and again", background.what());
                // The first one here, so that what cannot be started is an error.
                let first = background.spawn()?;
                (vec![thread(Box::new(move |stop| repeat(first, &background, stop)))], what)
            }
            None => {
                let threads = (0..THREADS).map(|id| thread(Box::new(move |stop| touch(id, stop))));
                (threads.collect(), format!("{THREADS} threads writing to {TOUCHED} each"))
            }
        };
        Ok(Self { stop, threads, what })
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
