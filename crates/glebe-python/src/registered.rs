//! [`Registered`] keeps memory while a device has its addresses. It ends the registration before
//! the memory ends, and refuses resizes meanwhile.
//!
//! The package's `cuda` module registers and unregisters; this file only knows that it did. A
//! registration belongs to the process that made it, because a device's driver does not follow
//! forks. Lock: held for a few instructions, and not while Python is called.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::{forks, Failure, Result};

struct Registration {
    /// Unregisters the memory, or raises.
    end: Py<PyAny>,
    process: u64,
}

#[derive(Default)]
struct State {
    by: Option<Registration>,
    resizes: usize,
    /// True if the memory is ending.
    is_over: bool,
}

impl State {
    fn current(&self) -> Option<&Registration> {
        self.by.as_ref().filter(|by| by.process == forks::process())
    }
}

pub(crate) struct Registered {
    state: Mutex<State>,
    /// Name of the memory in errors.
    what: &'static str,
}

/// A resize under way.
pub(crate) struct Resize<'a>(&'a Registered);

impl Registered {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { state: Mutex::default(), what }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a registration, which `end` ends.
    ///
    /// # Errors
    /// `ValueError` if the memory is registered, is being resized, or has ended.
    pub(crate) fn begin(&self, end: Py<PyAny>) -> Result<()> {
        let mut state = self.lock();
        let why = match &*state {
            State { is_over: true, .. } => return Err(Failure::ended(self.what)),
            state if state.current().is_some() => "is registered already: close that registration",
            State { resizes: 1.., .. } => "is growing or shrinking: register it afterwards",
            _ => {
                let before = state.by.replace(Registration { end, process: forks::process() });
                drop(state);
                drop(before);
                return Ok(());
            }
        };
        Err(Failure::argument(format!("the {} {why}", self.what)))
    }

    /// Forgets the registration.
    pub(crate) fn forget(&self) {
        let gone = self.lock().by.take();
        drop(gone);
    }

    /// Ends the registration, and prevents another one.
    ///
    /// # Errors
    /// The error that `end` raised; the registration then continues. `BufferError` if it continues
    /// without an error.
    pub(crate) fn end(&self, py: Python<'_>) -> Result<()> {
        loop {
            let mut state = self.lock();
            let Some(by) = state.current() else {
                state.is_over = true;
                return Ok(());
            };
            let end = by.end.clone_ref(py);
            drop(state);
            end.call0(py)?;
            if self.lock().current().is_some_and(|by| by.end.is(&end)) {
                return Err(Failure::buffer(format!("the {} is still registered", self.what)));
            }
        }
    }

    /// Allows registrations again, because the memory did not end.
    pub(crate) fn stays(&self) {
        self.lock().is_over = false;
    }

    /// Begins a resize.
    ///
    /// # Errors
    /// `ValueError` if the memory is registered.
    pub(crate) fn resize(&self) -> Result<Resize<'_>> {
        let mut state = self.lock();
        if state.current().is_some() {
            let what = self.what;
            return Err(Failure::argument(format!(
                "the {what} is registered with a device, and cannot grow or shrink: close the \
                 registration first"
            )));
        }
        state.resizes += 1;
        Ok(Resize(self))
    }
}

impl Drop for Resize<'_> {
    fn drop(&mut self) {
        self.0.lock().resizes -= 1;
    }
}
