//! The thread of a registration makes all calls that register and unregister.
//!
//! # Safety
//! The thread owns the memory, and lets it go only when no piece is registered. If CUDA keeps a
//! piece or the thread panics, the memory stays for ever.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::time::Instant;

use super::error::CudaFailure;
use super::memory::Kept;
use super::runtime::{NOT_REGISTERED, UNLOADING};
use super::state::{Phase, Registering};
use glebe_os::units::Bytes;

enum Work {
    Register(usize),
    End,
    Leave,
}

pub(super) fn run(shared: &Registering, memory: Kept) {
    let memory = ManuallyDrop::new(memory);
    let mut has_begun = false;
    let end_failure = loop {
        match next(shared) {
            Work::Register(number) => register(shared, number, &mut has_begun),
            Work::Leave => return,
            Work::End => {
                let failed = unregister_all(shared);
                // A wait that fails may leave another device current.
                has_begun = false;
                if shared.lock().ready == Bytes::ZERO {
                    break failed;
                }
                shared.change(|state| {
                    state.end_failure.clone_from(&failed);
                    state.phase = Phase::Stopped(failed);
                });
            }
        }
    };
    // Before the end is told, so that the memory is free when `close` returns.
    drop(ManuallyDrop::into_inner(memory));
    shared.change(|state| (state.phase, state.end_failure) = (Phase::Ended, end_failure));
}

fn next(shared: &Registering) -> Work {
    let mut state = shared.lock();
    loop {
        let number = match state.phase {
            Phase::Registering => state.choose(),
            Phase::Stopped(_) => None,
            Phase::Ending => return Work::End,
            Phase::Ended | Phase::Left => return Work::Leave,
        };
        match number {
            Some(number) => return Work::Register(number),
            None => state = shared.sleep(state, None),
        }
    }
}

fn register(shared: &Registering, number: usize, has_begun: &mut bool) {
    let piece = shared.cut.bytes(number);
    let mut work = || {
        if !*has_begun {
            shared.runtime.begin_thread(&shared.devices)?;
            *has_begun = true;
        }
        // SAFETY: this thread keeps the memory until the piece is unregistered.
        unsafe { shared.runtime.register(shared.base, piece) }
    };
    let done = work();
    shared.change(|state| match done {
        Ok(()) => {
            state.is_ready[number] = true;
            state.ready = state.ready + piece.1;
        }
        // A registration that is ending ends, and `resume` tries the piece again.
        Err(failure) if state.is_open() => state.phase = Phase::Stopped(Some(failure)),
        Err(_) => {}
    });
    let resting_until = Instant::now().checked_add(shared.pause);
    let mut state = shared.lock();
    while matches!(state.phase, Phase::Registering)
        && resting_until.is_none_or(|until| Instant::now() < until)
    {
        state = shared.sleep(state, resting_until);
    }
}

/// Returns the last error. A piece that CUDA keeps stays ready.
fn unregister_all(shared: &Registering) -> Option<CudaFailure> {
    if shared.lock().ready == Bytes::ZERO {
        return None;
    }
    if let Some(failure) = failure_of(shared.runtime.synchronize(&shared.devices)) {
        return Some(failure);
    }
    let mut failed = None;
    for number in (0..shared.cut.len()).rev() {
        if !shared.lock().is_ready[number] {
            continue;
        }
        let piece = shared.cut.bytes(number);
        let failure = failure_of(shared.runtime.unregister(shared.base, piece));
        if failure.as_ref().is_none_or(|failure| failure.code == NOT_REGISTERED) {
            shared.change(|state| {
                state.is_ready[number] = false;
                state.ready = state.ready - piece.1;
            });
        }
        failed = failure.or(failed);
    }
    failed
}

/// Returns the error, unless the driver itself has ended.
fn failure_of(done: Result<(), CudaFailure>) -> Option<CudaFailure> {
    done.err().filter(|failure| failure.code != UNLOADING)
}
