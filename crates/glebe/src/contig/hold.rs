//! [`HeldBy`]: what keeps pages in their frames, and the long-term pin that can.
//!
//! A pin is a registered buffer of an io_uring on which no request is ever made: the kernel keeps
//! such pages in place for devices that may be writing there. It counts against the caller's
//! `RLIMIT_MEMLOCK`, and costs some 0.1 µs a base page and 1 µs a huge one. mlock is no such hold:
//! it keeps pages in memory, not in their frames. Source: io_uring_register(2), mlock(2).

use std::fmt;

use crate::error::OsError;
use crate::mapping::Mapping;
use crate::sys::fork::ForkGuard;
use crate::sys::io_uring::Ring;

/// What keeps the pages in their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// They are of a hugetlb pool. The kernel neither swaps nor compacts such pages. Newer kernels
    /// may move those of 2 MiB for a contiguous allocation of their own, and taking memory off line
    /// moves them: where that may happen, ask for a pin too, or look with
    /// [`Contig::verify`](super::Contig::verify).
    HugetlbPool,
    /// As [`HeldBy::HugetlbPool`], in movable memory ([`Source::Blocks`](super::Source::Blocks)): a
    /// long-term pin, also one by a driver, moves them out of it and ends the run.
    MovablePool,
    /// A long-term pin: they are a registered buffer of an io_uring.
    LongTermPin,
    /// They are a buffer of a dma-heap, allocated for devices.
    DmaBuffer,
    /// Nothing: the kernel may move them at any time.
    Nothing,
}

impl HeldBy {
    /// One word for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HugetlbPool => "hugetlb_pool",
            Self::MovablePool => "movable_hugetlb_pool",
            Self::LongTermPin => "long_term_pin",
            Self::DmaBuffer => "dma_buffer",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugetlbPool => "the hugetlb pool",
            Self::MovablePool => "the hugetlb pool, in movable memory: a long-term pin moves them",
            Self::LongTermPin => "a long-term pin (an io_uring registered buffer)",
            Self::DmaBuffer => "the dma-heap's buffer",
            Self::Nothing => "nothing: the kernel may move the pages",
        })
    }
}

/// A long-term pin on all of a mapping, until this is dropped.
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) ring: Ring,
    guard: ForkGuard,
}

impl Pin {
    /// Pins the pages of `mapping`. Where they were in memory that can be unplugged they are moved
    /// out of it first: frames are read after this.
    pub fn new(mapping: &Mapping) -> Result<Self, OsError> {
        let ring = Ring::new()
            .map_err(|source| OsError::new("io_uring_setup", "a ring for a pin", source))?;
        ring.pin_all(mapping.as_ptr(), mapping.len()).map_err(|source| {
            let subject = format!("{:#x}, {}", mapping.addr(), mapping.len());
            OsError::new("io_uring_register", subject, source)
        })?;
        Ok(Self { ring, guard: ForkGuard::new() })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // At once, since closing the ring would give the pages back later, and only when no forked
        // child has it open. A child has the ring too, and must leave its parent's pin.
        if !self.guard.is_child() {
            let _ = self.ring.unpin();
        }
    }
}
