//! [`HeldBy`] says what keeps pages in their frames, such as the long-term [`Pin`].
//!
//! A pin registers the pages as an io_uring's buffer, which the kernel keeps in place, unlike
//! mlocked pages. A pin counts against `RLIMIT_MEMLOCK` and takes 0.1 µs a base page, 1 µs a huge
//! page. Source: io_uring_register(2).

use std::fmt;

use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::memory::io_uring::Ring;
use glebe_os::internal::sys::processes::fork::ForkGuard;

/// Mechanisms that keep pages in their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// The hugetlb pool, which the kernel neither swaps nor compacts. Newer kernels may move
    /// unpinned 2 MiB pages; a hot-unplug of memory may move any unpinned page.
    HugetlbPool,
    /// The hugetlb pool, in movable memory ([`Source::Blocks`](super::Source::Blocks)). A long-term
    /// pin would move the pages.
    MovablePool,
    /// A long-term pin by an io_uring.
    LongTermPin,
    /// A dma-heap's buffer, allocated for devices.
    DmaBuffer,
    /// Nothing.
    Nothing,
}

impl HeldBy {
    /// Returns one word for programs.
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

#[derive(Debug)]
pub(super) struct Pin {
    pub(super) ring: Ring,
    guard: ForkGuard,
}

impl Pin {
    /// The kernel may move pages before it pins them, so frames must be read afterwards.
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
        // Unpins explicitly, because a forked child keeps the ring open. A child must not unpin the
        // parent's memory.
        if !self.guard.is_child() {
            let _ = self.ring.unpin();
        }
    }
}
