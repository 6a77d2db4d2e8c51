//! [`Engine`], the public name, and `Backend`, the engine at work.

use std::fmt;

use super::scan::Scan;
use super::tag::Tag;
use crate::error::OsError;
use crate::extent::Extent;
use crate::sys::page_size;
use crate::units::{PageSize, Pages};

/// How lost pages are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// By the page tables, with a userfaultfd: contents are never altered while marked, and a
    /// touch of a lost page is SIGBUS with its address.
    #[default]
    Scan,
    /// By a word of each page, exchanged while it is marked: works without userfaultfd and unmarks
    /// without a system call, but one for each run that is lost. Runs of more than 8 pages of a
    /// region's own memory are left as they are and unmarked with a few, where the kernel has
    /// `PAGEMAP_SCAN` (Linux 6.7). A touch of a lost page finds zeros.
    Tag,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scan => "scan",
            Self::Tag => "tag",
        })
    }
}

#[derive(Debug)]
pub(super) enum Backend {
    Scan(Scan),
    Tag(Tag),
}

impl Backend {
    /// The engine that is asked for, or the one that can be had; `is_own` and `without_scan` as for
    /// either.
    pub(super) fn new(
        engine: Option<Engine>,
        base: usize,
        pages: u64,
        huge: Option<PageSize>,
        is_own: bool,
        without_scan: bool,
    ) -> Result<Self, OsError> {
        let page = page_size();
        let tag = || Self::Tag(Tag::new(base, pages, page, huge, is_own, without_scan));
        let scan = || Scan::new(base, page, huge, without_scan).map(Self::Scan);
        Ok(match engine {
            Some(Engine::Tag) => tag(),
            Some(Engine::Scan) => scan()?,
            None => scan().unwrap_or_else(|_| tag()),
        })
    }

    /// Drops the contents of marked pages.
    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        match self {
            Self::Scan(scan) => scan.drop_pages(pages),
            Self::Tag(tag) => tag.drop_pages(pages),
        }
    }

    /// How many of some marked pages are in memory.
    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        match self {
            Self::Scan(scan) => scan.resident(pages),
            Self::Tag(tag) => tag.resident(pages),
        }
    }

    /// Drops the contents of parts and calls them lost.
    pub(super) fn lose(&self, parts: &[Extent]) -> Result<Vec<Extent>, OsError> {
        parts.iter().try_for_each(|part| self.drop_pages(*part))?;
        Ok(parts.to_vec())
    }

    /// Its public name.
    pub(super) fn engine(&self) -> Engine {
        match self {
            Self::Scan(_) => Engine::Scan,
            Self::Tag(_) => Engine::Tag,
        }
    }
}
