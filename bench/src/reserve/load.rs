//! [`Load`]: something else for the machine to do while requests are timed.
//!
//! By default two threads that write to memory of their own; or a shell command in a process group
//! of its own, started again whenever it ends. Both end when the load is dropped.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

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
    pub(super) fn start(command: Option<&str>, dir: Option<&Path>) -> Result<Self, OsError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (count, what) = match command {
            Some(command) => (1, format!("`{command}`, again and again")),
            None => (THREADS, format!("{THREADS} threads writing to {TOUCHED} each")),
        };
        let mut load = Self { stop, threads: Vec::new(), what };
        for id in 0..count {
            let stop = Arc::clone(&load.stop);
            let thread = match command {
                None => std::thread::spawn(move || touch(id, &stop)),
                Some(command) => {
                    // The first one here, so that a command that cannot be started is an error.
                    let first =
                        spawn(command, dir).map_err(|e| OsError::new("spawn", command, e))?;
                    let (command, dir) = (command.to_owned(), dir.map(Path::to_owned));
                    std::thread::spawn(move || repeat(first, &command, dir.as_deref(), &stop))
                }
            };
            load.threads.push(thread);
        }
        Ok(load)
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

/// In `dir`, where its temporary files go too.
fn spawn(command: &str, dir: Option<&Path>) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).process_group(0);
    if let Some(dir) = dir {
        shell.current_dir(dir).env("TMPDIR", dir);
    }
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn repeat(first: Child, command: &str, dir: Option<&Path>, stop: &AtomicBool) {
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
            match spawn(command, dir) {
                Ok(next) => child = next,
                Err(_) => return,
            }
        }
    }
}
