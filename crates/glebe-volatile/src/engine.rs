//! [`Engine`] names a method, and [`Backend`] runs it.

use std::fmt;

use super::scan::Scan;
use super::tag::Tag;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{PageSize, Pages};

/// The method that detects lost pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Reads the page tables and uses a userfaultfd. Never changes marked contents. A touch of a
    /// lost page raises SIGBUS, unless [`Options::on_lost`](super::Options::on_lost) refills it.
    #[default]
    Scan,
    /// Replaces the first word of marked pages, except usually in runs of more than 8 pages of a
    /// region's own memory since Linux 6.7. Needs no userfaultfd. An unmark makes at least one
    /// system call per lost run. A touch of a lost page finds zeros.
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

    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        match self {
            Self::Scan(scan) => scan.drop_pages(pages),
            Self::Tag(tag) => tag.drop_pages(pages),
        }
    }

    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        match self {
            Self::Scan(scan) => scan.resident(pages),
            Self::Tag(tag) => tag.resident(pages),
        }
    }

    pub(super) fn lose(&self, parts: &[Extent]) -> Result<Vec<Extent>, OsError> {
        parts.iter().try_for_each(|part| self.drop_pages(*part))?;
        Ok(parts.to_vec())
    }

    pub(super) fn engine(&self) -> Engine {
        match self {
            Self::Scan(_) => Engine::Scan,
            Self::Tag(_) => Engine::Tag,
        }
    }
}
