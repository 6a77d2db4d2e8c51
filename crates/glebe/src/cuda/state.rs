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
    /// The thread has panicked. CUDA may have pieces, so the memory stays for ever.
    Panicked,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) is_ready: Vec<bool>,
    pub(super) ready: Bytes,
    /// Numbers of pieces that come first.
    wanted: VecDeque<Range<usize>>,
    /// Pieces below this number are ready or were tried.
    pub(super) next: usize,
    pub(super) end_failure: Option<CudaFailure>,
}

impl State {
    fn new(pieces: usize) -> Self {
        Self {
            phase: Phase::Registering,
            is_ready: vec![false; pieces],
            ready: Bytes::ZERO,
            wanted: VecDeque::new(),
            next: 0,
            end_failure: None,
        }
    }

    /// Lets the pieces come next, after those that others want.
    pub(super) fn want(&mut self, numbers: Range<usize>) {
        let is_ready = self.ready_from(numbers.clone()) == numbers.len();
        if !is_ready && !self.wanted.contains(&numbers) {
            self.wanted.push_back(numbers);
        }
    }

    /// Returns the next piece to register.
    pub(super) fn choose(&mut self) -> Option<usize> {
        while let Some(numbers) = self.wanted.front_mut() {
            match numbers.next() {
                Some(number) if !self.is_ready[number] => return Some(number),
                Some(_) => {}
                None => _ = self.wanted.pop_front(),
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

    /// Returns how many of the pieces are ready, up to the first that is not.
    pub(super) fn ready_from(&self, numbers: Range<usize>) -> usize {
        self.is_ready[numbers].iter().take_while(|is_ready| **is_ready).count()
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Registering | Phase::Stopped(_))
    }

    /// Returns an error unless pieces may be registered.
    pub(super) fn check_open(&self) -> Result<(), CudaError> {
        match self.phase {
            Phase::Registering | Phase::Stopped(_) => Ok(()),
            Phase::Panicked => Err(CudaError::Panicked),
            Phase::Ending | Phase::Ended | Phase::Left => Err(CudaError::Closed),
        }
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
        let state = Mutex::new(State::new(cut.len()));
        let (guard, changed) = (ForkGuard::new(), Condvar::new());
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
        mut is_done: impl FnMut(&State) -> bool,
    ) -> Result<bool, CudaError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut state = self.lock();
        loop {
            state.check_open()?;
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
    pub(super) fn end(&self) -> Result<(), CudaError> {
        let mut state = self.lock();
        if state.is_open() {
            (state.phase, state.end_failure) = (Phase::Ending, None);
            self.changed.notify_all();
        }
        let was_ending = matches!(state.phase, Phase::Ending);
        while matches!(state.phase, Phase::Ending) {
            state = self.sleep(state, None);
        }
        match (&state.phase, &state.end_failure) {
            (Phase::Panicked, _) => Err(CudaError::Panicked),
            (_, Some(failure)) if was_ending => Err(failure.clone().into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_pieces_come_first_and_once() {
        let mut state = State::new(8);
        for _ in 0..3 {
            state.want(5..7);
        }
        state.want(2..6);
        assert_eq!(state.wanted, [5..7, 2..6]);
        let order: Vec<usize> = std::iter::from_fn(|| {
            let number = state.choose()?;
            state.is_ready[number] = true;
            Some(number)
        })
        .collect();
        assert_eq!(order, [5, 6, 2, 3, 4, 0, 1, 7]);
        state.want(2..6);
        assert!(state.wanted.is_empty(), "ready pieces are not queued");
    }

    #[test]
    fn ready_pieces_count_up_to_a_gap() {
        let mut state = State::new(4);
        state.is_ready = vec![true, true, false, true];
        let counts = [0..4, 0..2, 2..4, 3..4, 4..4].map(|numbers| state.ready_from(numbers));
        assert_eq!(counts, [2, 2, 0, 1, 0]);
    }
}
