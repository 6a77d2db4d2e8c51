//! Seals of leased files: see fcntl(2).
//!
//! The daemon's file has seals of its own, and takes no more. So this library keeps the program's
//! seals and refuses changes of the length itself.

use std::cmp::Ordering;

use glebe_os::internal::sys::errno::EPERM;
use glebe_os::internal::sys::memory::direct::Answer;
use glebe_os::internal::sys::memory::direct_files::{
    self, F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK,
};

use crate::files::{is_any_leased, KEPT_SEALS};
use crate::state::{locked, State};

/// Answers a command about the seals of a leased file. Returns nothing for other calls.
pub(crate) fn fcntl(fd: i32, command: i32, word: usize) -> Option<Answer> {
    if !matches!(command, F_ADD_SEALS | F_GET_SEALS) || !is_any_leased() {
        return None;
    }
    let mut locked = locked();
    let seals = locked.get().seals(fd)?;
    let more = word as i32;
    Some(match command {
        F_GET_SEALS => Ok(*seals as usize),
        _ if *seals & F_SEAL_SEAL != 0 || more & !KEPT_SEALS != 0 => Err(EPERM),
        _ => {
            *seals |= more;
            Ok(0)
        }
    })
}

impl State {
    /// Returns true if a seal forbids another length.
    pub(crate) fn is_sealed(&mut self, fd: i32, old: usize, want: usize) -> bool {
        let seal = match want.cmp(&old) {
            Ordering::Less => F_SEAL_SHRINK,
            Ordering::Equal => 0,
            Ordering::Greater => F_SEAL_GROW,
        };
        let seals = self.seals(fd).map_or_else(|| direct_files::seals(fd), |seals| *seals);
        seals & seal != 0
    }
}
