//! What a tenant gets of a claim, or why it gets none. Values alone.

use crate::reserve::words::{GranuleWord, PageWord};

/// What entering a granule adds to its live pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Adds {
    /// Nothing: the page is live already, or will not be.
    Nothing,
    /// A page, whose granule is then not known to be zero.
    Page,
    /// A page that will be zero.
    ZeroPage,
}

/// A page that the holder may fill. It must be filled or given up.
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim {
    pub(crate) page: usize,
    pub(super) word: PageWord,
    pub(super) seen: GranuleWord,
    /// The page held a tenant's page before, which the claim evicted.
    pub(crate) evicted: bool,
}

/// Why a page could not be claimed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoClaim {
    /// Somebody else has it, or first class keeps tenants out.
    Taken,
    /// First class took the granule, and the live page that stood for the claim with it.
    Recalled,
}

/// Why a claimed page could not be filled. The claim is gone either way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFilled {
    /// First class took the page, and counted it as recalled.
    Recalled,
    /// Interrupted too often.
    Interrupted,
}
