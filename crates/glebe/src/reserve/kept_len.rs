//! [`KeptLen`] keeps a reserve from growing and shrinking while a device has its addresses.

use super::{Reserve, ReserveError};
use glebe_os::internal::sync::lock;

/// Refuses resizes until dropped, and keeps the reserve alive.
#[derive(Debug)]
pub(crate) struct KeptLen(Reserve);

impl Reserve {
    /// Keeps the length. Waits for a resize under way.
    ///
    /// # Errors
    /// [`ReserveError::Forked`]; [`ReserveError::Bricks`], because a closed block unmaps its pages.
    pub(crate) fn keep_len(&self) -> Result<KeptLen, ReserveError> {
        // A reserve without room keeps its length anyway.
        if let Some(memory) = &self.inner.get()?.memory {
            if memory.brick().is_some() {
                return Err(ReserveError::Bricks);
            }
            *memory.keepers() += 1;
        }
        Ok(KeptLen(self.clone()))
    }

    /// Returns the first position, below `align`, of blocks of any pages that are aligned to
    /// `align` pages; 0 in a forked child.
    pub(crate) fn first_aligned(&self, align: u64) -> u64 {
        self.inner.get().map_or(0, |core| lock(&core.positions).first_aligned(align))
    }
}

impl Drop for KeptLen {
    fn drop(&mut self) {
        if let Some(memory) = self.0.inner.get().ok().and_then(|inner| inner.memory.as_ref()) {
            *memory.keepers() -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::contig::{Contig, Source};
    use crate::reserve::Reserve;
    use glebe_os::units::Bytes;

    #[test]
    fn a_reserve_that_keeps_its_length_gives_a_reclaimer_nothing() {
        let memory = Contig::options().source(Source::Plain);
        let options = Reserve::options().memory(memory).room(Bytes::mib(8));
        let reserve = options.build(Bytes::mib(8)).unwrap();
        let shrinkable = reserve.shrinkable(Bytes::mib(2)).unwrap();
        let (one, other) = (reserve.keep_len().unwrap(), reserve.keep_len().unwrap());
        for kept in [one, other] {
            assert_eq!(shrinkable.spare(), Some(Bytes::ZERO));
            assert_eq!(shrinkable.shed(Bytes::mib(2)), Bytes::ZERO);
            assert!(reserve.grow(Bytes::mib(2)).is_err());
            drop(kept);
        }
        assert_eq!(shrinkable.spare(), Some(Bytes::mib(6)));
        assert_eq!(shrinkable.shed(Bytes::mib(2)), Bytes::mib(2));
    }
}
