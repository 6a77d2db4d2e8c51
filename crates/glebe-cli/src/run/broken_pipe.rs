//! [`keep`]: whether the program ignores SIGPIPE is for its caller to say, as with any program.
//!
//! Rust's runtime ignores the signal before `main`, and `exec` gives it its default action. systemd
//! starts services with it ignored: a daemon that relies on that would end when a client hangs up.
//!
//! # Safety
//! One function runs before `main`. It makes one call and stores to an atomic.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use glebe::sys::broken_pipe;

/// What the caller had the signal be.
static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// The loader calls what is in this section before `main`.
#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    IS_IGNORED.store(broken_pipe::is_ignored(), Ordering::Relaxed);
}

/// Has the program that `command` executes ignore the signal if this process's caller did.
pub fn keep(command: &mut Command) {
    if !IS_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        broken_pipe::ignore();
        Ok(())
    };
    // SAFETY: the closure makes one call, which may be made between fork and exec.
    unsafe { command.pre_exec(ignore) };
}
