//! [`keep`] passes the caller's setting of SIGPIPE on to the program.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and [`CommandExt::exec`] resets SIGPIPE to the
//! default. Without [`keep`], a daemon that systemd starts with SIGPIPE ignored would end when a
//! client hangs up.
//!
//! # Safety
//! The function that runs before `main` makes one call and stores to an atomic.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use glebe::internal::sys::files::broken_pipe;

static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// The loader calls the functions in this section before `main`.
#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    IS_IGNORED.store(broken_pipe::is_ignored(), Ordering::Relaxed);
}

/// Makes the program of `command` ignore SIGPIPE if the caller of this process did.
pub fn keep(command: &mut Command) {
    if !IS_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        broken_pipe::ignore();
        Ok(())
    };
    // SAFETY: the closure makes one call, which is safe between fork and exec.
    unsafe { command.pre_exec(ignore) };
}
