//! The thread of a registration makes all calls that register and unregister.
//!
//! # Safety
//! The thread owns the memory, and lets it go only when no piece is registered. If CUDA keeps a
//! piece or the thread panics, the memory stays for ever.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::time::Instant;

use super::error::CudaFailure;
use super::memory::KeptMemory;
use super::runtime::{NOT_REGISTERED, UNLOADING};
use super::state::{Phase, Registering};
use glebe_os::units::Bytes;

/// Tells a panic of the thread to those who wait for it.
struct WakesAtPanic<'a>(&'a Registering);

impl Drop for WakesAtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.change(|state| state.phase = Phase::Panicked);
        }
    }
}

enum Work {
    Register(usize),
    End,
    Leave,
}

pub(super) fn run(shared: &Registering, memory: KeptMemory) {
    let memory = ManuallyDrop::new(memory);
    let _wakes = WakesAtPanic(shared);
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
    // Frees the memory before `Ended`, so that it is free when `close` returns.
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
            Phase::Ended | Phase::Left | Phase::Panicked => return Work::Leave,
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
        // During `Ending` the error is dropped; `resume` tries the piece again.
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
        // After a reset of the device the piece is not registered any more.
        let failure = failure_of(shared.runtime.unregister(shared.base, piece))
            .filter(|failure| failure.code != NOT_REGISTERED);
        if failure.is_none() {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::contig::{Contig, Source};
    use crate::cuda::cut::Cut;
    use crate::cuda::error::CudaError;
    use crate::cuda::runtime::Runtime;

    #[test]
    fn a_panic_of_the_thread_ends_the_waits_and_keeps_the_memory() {
        let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
        let contig = Arc::new(contig);
        let memory = KeptMemory::new((&contig).into()).unwrap();
        let cut = Cut::new(&memory.present().unwrap(), 16, 0);
        let runtime = Runtime::that_does_nothing();
        let base = memory.base();
        let shared = Arc::new(Registering::new(runtime, vec![0], Duration::ZERO, base, cut));
        // The cut lacks this piece, so the thread panics.
        shared.change(|state| state.is_ready.push(false));
        let waiter = Arc::clone(&shared);
        let waiter = std::thread::spawn(move || waiter.wait(None, |_| false));
        let of_thread = Arc::clone(&shared);
        assert!(std::thread::spawn(move || run(&of_thread, memory)).join().is_err());
        let late = shared.wait(Some(Duration::from_secs(5)), |_| false);
        assert!(matches!(late, Err(CudaError::Panicked)), "{late:?}");
        assert!(matches!(shared.end(), Err(CudaError::Panicked)));
        assert!(matches!(waiter.join().unwrap(), Err(CudaError::Panicked)));
        assert_eq!(Arc::strong_count(&contig), 2);
    }
}
