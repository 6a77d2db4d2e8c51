//! [`Registration`] is memory that CUDA registers in the background.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::CudaError;
use super::memory::{KeptMemory, Registrable};
use super::options::RegistrationOptions;
use super::runtime::Runtime;
use super::state::{Phase, Registering};
use super::worker;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::processes::thread::start_joined;
use glebe_os::units::Bytes;

/// [`Registration`] registers memory piece by piece until dropped or closed, and shares the memory
/// meanwhile.
///
/// Drop waits for the piece under way and for the GPUs, then unregisters all. Drop cannot report
/// errors: call [`Registration::close`] to get them. If CUDA keeps a piece, the memory stays mapped
/// until the process ends. If the wait for a GPU fails, CUDA keeps all of them. The end of the
/// process drops no registration in a static; the driver then unregisters all.
#[derive(Debug)]
#[must_use = "a registration that is dropped unregisters the memory"]
pub struct Registration {
    shared: Arc<Registering>,
    /// `None` only during drop.
    thread: Option<JoinHandle<()>>,
}

impl Registration {
    /// Starts to register the memory in pieces of 256 MiB, on the calling thread's current device.
    ///
    /// # Errors
    /// As [`RegistrationOptions::register`].
    pub fn new(runtime: Runtime, memory: impl Into<Registrable>) -> Result<Self, CudaError> {
        Self::options().register(runtime, memory)
    }

    /// Returns the default options.
    pub fn options() -> RegistrationOptions {
        RegistrationOptions::default()
    }

    pub(super) fn start(shared: Registering, memory: KeptMemory) -> Result<Self, CudaError> {
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        let thread = start_joined("glebe-cuda", move || worker::run(&of_thread, memory));
        let thread = thread.map_err(|why| OsError::new("clone", "a thread for CUDA", why))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until the pages, such as a block's, are registered. Their pieces come next, in the
    /// order of the calls. Returns false after `timeout`; a timeout of zero only asks.
    ///
    /// # Errors
    /// [`CudaError::BadRange`]; [`CudaError::Closed`], [`CudaError::Panicked`],
    /// [`CudaError::Forked`]. Unless the pages are
    /// registered, [`CudaError::Refused`] with the error that stopped the registration, or
    /// [`CudaError::Cancelled`].
    pub fn wait(&self, pages: Extent, timeout: Option<Duration>) -> Result<bool, CudaError> {
        let shared = &self.shared;
        shared.own()?;
        let outside = || CudaError::BadRange { given: pages, total: shared.cut.total() };
        let numbers = shared.cut.numbers(pages).ok_or_else(outside)?;
        if timeout != Some(Duration::ZERO) {
            shared.change(|state| state.want(numbers.clone()));
        }
        let mut from = numbers.start;
        shared.wait(timeout, |state| {
            from += state.ready_from(from..numbers.end);
            if from < numbers.end {
                return false;
            }
            // A close may have unregistered some since.
            from = numbers.start;
            state.ready_from(numbers.clone()) == numbers.len()
        })
    }

    /// Waits until all memory is registered. Returns false after `timeout`.
    ///
    /// # Errors
    /// As [`Registration::wait`].
    pub fn wait_all(&self, timeout: Option<Duration>) -> Result<bool, CudaError> {
        self.shared.own()?;
        let total = self.total();
        self.shared.wait(timeout, |state| state.ready == total)
    }

    /// Waits until more than `ready` bytes or all are registered, or until `timeout`. Returns the
    /// number of bytes that are registered.
    ///
    /// # Errors
    /// As [`Registration::wait`].
    pub fn progress(&self, ready: Bytes, timeout: Option<Duration>) -> Result<Bytes, CudaError> {
        self.shared.own()?;
        let total = self.total();
        self.shared.wait(timeout, |state| state.ready > ready || state.ready == total)?;
        Ok(self.ready())
    }

    /// Returns the number of bytes that are registered; 0 in a forked child.
    #[must_use]
    pub fn ready(&self) -> Bytes {
        self.shared.own().map_or(Bytes::ZERO, |()| self.shared.lock().ready)
    }

    /// Returns the number of bytes to register.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.shared.cut.total()
    }

    /// Returns true if the pages lie in one piece. CUDA may refuse a copy from two.
    #[must_use]
    pub fn is_one_piece(&self, pages: Extent) -> bool {
        self.shared.cut.numbers(pages).is_some_and(|numbers| numbers.len() == 1)
    }

    /// Registers no further piece. Does not wait; the pieces that are registered stay usable.
    pub fn cancel(&self) {
        if !self.shared.is_child() {
            self.shared.change(|state| {
                if matches!(state.phase, Phase::Registering) {
                    state.phase = Phase::Stopped(None);
                }
            });
        }
    }

    /// Continues after an error or [`Registration::cancel`], with the pieces that are not
    /// registered.
    ///
    /// # Errors
    /// [`CudaError::Closed`], [`CudaError::Panicked`], [`CudaError::Forked`].
    pub fn resume(&self) -> Result<(), CudaError> {
        self.shared.own()?;
        let mut open = Ok(());
        self.shared.change(|state| {
            open = state.check_open();
            if open.is_ok() {
                (state.phase, state.next) = (Phase::Registering, 0);
            }
        });
        open
    }

    /// Waits for the piece under way and for the GPUs, unregisters all, and lets the memory go. A
    /// second call does nothing, and neither does a call in a forked child.
    ///
    /// # Errors
    /// [`CudaError::Refused`] if CUDA fails. Pieces that CUDA keeps stay usable, and another call
    /// tries again. If the wait for a GPU fails, CUDA keeps all. [`CudaError::Panicked`].
    pub fn close(&self) -> Result<(), CudaError> {
        if self.shared.is_child() {
            return Ok(());
        }
        self.shared.end()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.shared.is_child() {
            // The child has no such thread to detach.
            std::mem::forget(thread);
            return;
        }
        if self.shared.end().is_err() {
            self.shared.change(|state| {
                if state.is_open() {
                    state.phase = Phase::Left;
                }
            });
        }
        // A panic of the thread has been printed, and leaves the memory mapped.
        let _ = thread.map(JoinHandle::join);
    }
}
