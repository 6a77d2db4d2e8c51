//! [`Registering`] is what a registration and its thread share.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::cut::Cut;
use super::error::{CudaError, CudaFailure};
use super::runtime::Runtime;
use glebe_os::internal::sync::{lock, Condvar, Mutex, MutexGuard};
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::Bytes;

#[derive(Debug)]
pub(super) enum Phase {
    /// Next: `Stopped`, `Ending`.
    Registering,
    /// By an error of CUDA, or cancelled. Next: `Registering`, `Ending`, `Left`.
    Stopped(Option<CudaFailure>),
    /// Next: `Ended`, or `Stopped` if CUDA keeps a piece.
    Ending,
    /// No piece is registered, and the memory is let go.
    Ended,
    /// Nobody waits for the thread, but CUDA keeps a piece. So the memory stays for ever.
    Left,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) is_ready: Vec<bool>,
    pub(super) ready: Bytes,
    /// Numbers of pieces that come first.
    pub(super) wanted: VecDeque<usize>,
    /// The pieces before are ready, or were tried.
    pub(super) next: usize,
    pub(super) end_failure: Option<CudaFailure>,
}

impl State {
    /// Returns the next piece to register.
    pub(super) fn choose(&mut self) -> Option<usize> {
        while let Some(number) = self.wanted.pop_front() {
            if !self.is_ready[number] {
                return Some(number);
            }
        }
        while self.next < self.is_ready.len() {
            self.next += 1;
            if !self.is_ready[self.next - 1] {
                return Some(self.next - 1);
            }
        }
        None
    }

    pub(super) fn are_ready(&self, numbers: Range<usize>) -> bool {
        self.is_ready[numbers].iter().all(|is_ready| *is_ready)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Registering | Phase::Stopped(_))
    }
}

#[derive(Debug)]
pub(super) struct Registering {
    pub(super) runtime: Runtime,
    pub(super) devices: Vec<i32>,
    pub(super) pause: Duration,
    /// Address of position 0.
    pub(super) base: usize,
    pub(super) cut: Cut,
    guard: ForkGuard,
    state: Mutex<State>,
    changed: Condvar,
}

impl Registering {
    pub(super) fn new(
        runtime: Runtime,
        devices: Vec<i32>,
        pause: Duration,
        base: usize,
        cut: Cut,
    ) -> Self {
        let state = State {
            phase: Phase::Registering,
            is_ready: vec![false; cut.len()],
            ready: Bytes::ZERO,
            wanted: VecDeque::new(),
            next: 0,
            end_failure: None,
        };
        let (guard, state, changed) = (ForkGuard::new(), Mutex::new(state), Condvar::new());
        Self { runtime, devices, pause, base, cut, guard, state, changed }
    }

    pub(super) fn is_child(&self) -> bool {
        self.guard.is_child()
    }

    /// In a forked child another thread may have the lock for ever.
    pub(super) fn own(&self) -> Result<(), CudaError> {
        match self.is_child() {
            true => Err(CudaError::Forked),
            false => Ok(()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the state, and wakes all who wait for a change.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for a change, until `deadline` if there is one.
    pub(super) fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        match deadline {
            None => self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let woken = self.changed.wait_timeout(state, left);
                woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
        }
    }

    /// Waits until `is_done`. Returns false after `timeout`.
    pub(super) fn wait(
        &self,
        timeout: Option<Duration>,
        is_done: impl Fn(&State) -> bool,
    ) -> Result<bool, CudaError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut state = self.lock();
        loop {
            if !state.is_open() {
                return Err(CudaError::Closed);
            }
            if is_done(&state) {
                return Ok(true);
            }
            match &state.phase {
                Phase::Stopped(Some(failure)) => return Err(failure.clone().into()),
                Phase::Stopped(None) => {
                    let (ready, total) = (state.ready, self.cut.total());
                    return Err(CudaError::Cancelled { ready, total });
                }
                _ if is_late() => return Ok(false),
                _ => state = self.sleep(state, deadline),
            }
        }
    }

    /// Lets the thread end the registration, and waits until it has.
    pub(super) fn end(&self) -> Result<(), CudaFailure> {
        let mut state = self.lock();
        if state.is_open() {
            (state.phase, state.end_failure) = (Phase::Ending, None);
            self.changed.notify_all();
        } else if !matches!(state.phase, Phase::Ending) {
            return Ok(());
        }
        while matches!(state.phase, Phase::Ending) {
            state = self.sleep(state, None);
        }
        state.end_failure.clone().map_or(Ok(()), Err)
    }
}
