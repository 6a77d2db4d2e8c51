//! [`View`] is a call of mmap(2).
#![allow(unsafe_code)]

use glebe_os::internal::sys::memory::direct::{self, Answer};

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) prot: i32,
    pub(crate) flags: i32,
    pub(crate) fd: i32,
    pub(crate) offset: i64,
}

impl View {
    /// Has the kernel answer.
    ///
    /// # Safety
    /// See mmap(2).
    pub(crate) unsafe fn call(self) -> Answer {
        let Self { addr, len, prot, flags, fd, offset } = self;
        // SAFETY: the caller keeps the contract.
        unsafe { direct::mmap(addr, len, prot, flags, fd, offset) }
    }
}
