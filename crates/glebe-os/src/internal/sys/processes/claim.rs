//! [`Claim`] gives a resource to one holder of this process at a time. In a forked child inherited
//! claims are free.
//!
//! ```text
//! 63           32 31           0
//! | generation   | holder      |     0 = free
//! ```

use crate::internal::sync::{MappedWord, Ordering};
use crate::internal::sys::processes::fork::ForkGuard;

const HOLDER_BITS: u32 = 32;

#[derive(Debug, Default)]
pub struct Claim(MappedWord);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    pub fn new() -> Self {
        static LAST: MappedWord = MappedWord::new(0);
        let nth = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self(own() | nth & ((1 << HOLDER_BITS) - 1))
    }
}

fn own() -> u64 {
    ForkGuard::new().generation() << HOLDER_BITS
}

fn is_own(word: u64) -> bool {
    word != 0 && word >> HOLDER_BITS << HOLDER_BITS == own()
}

impl Claim {
    /// Returns false if another holder in this process has the claim.
    pub fn take(&self, holder: Holder) -> bool {
        let seen = self.0.load(Ordering::Acquire);
        if seen == holder.0 {
            return true;
        }
        let (set, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        !is_own(seen) && self.0.compare_exchange(seen, holder.0, set, failed).is_ok()
    }

    pub fn release(&self, holder: Holder) {
        let _ = self.0.compare_exchange(holder.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_held(&self) -> bool {
        match self.0.load(Ordering::Acquire) {
            0 => false,
            word => is_own(word),
        }
    }
}

#[cfg(test)]
mod tests;
