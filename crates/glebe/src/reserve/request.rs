//! What a first-class caller may ask for.

use super::error::Error;
use crate::units::Pages;

/// What a first-class caller asks for.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Request {
    pub(super) pages: Pages,
    pub(super) align: Pages,
    pub(super) zeroed: bool,
    pub(super) any: bool,
    pub(super) no_wait: bool,
}

impl Request {
    /// A physically contiguous block of `pages`, contents unspecified.
    pub fn new(pages: Pages) -> Self {
        let align = Pages::new(1);
        Self { pages, align, zeroed: false, any: false, no_wait: false }
    }

    /// At a multiple of `align` pages, a power of two: of the page frames where they are known, and
    /// with [`Request::any`], if the reserve is of several physical runs, of its own pages.
    pub fn align(self, align: Pages) -> Self {
        Self { align, ..self }
    }

    /// Filled with zeros.
    pub fn zeroed(self) -> Self {
        Self { zeroed: true, ..self }
    }

    /// Contiguous in virtual addresses only, if need be:
    /// [`Block::contiguity`](super::Block::contiguity) says which.
    pub fn any(self) -> Self {
        Self { any: true, ..self }
    }

    /// Rather an error than waiting for a tenant's copy, which happens only where restartable
    /// sequences are missing.
    pub fn no_wait(self) -> Self {
        Self { no_wait: true, ..self }
    }

    /// Whether any page will do.
    #[inline]
    pub(super) fn is_any_page(&self) -> bool {
        self.pages == Pages::new(1) && self.align == Pages::new(1) && !self.zeroed
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.pages == Pages::ZERO {
            return Err(Error::ZeroPages);
        }
        if !self.align.get().is_power_of_two() {
            return Err(Error::BadAlign { align: self.align });
        }
        Ok(())
    }
}
