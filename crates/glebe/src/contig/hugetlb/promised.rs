//! [`Promised`]: huge pages that are in the pool because mappings of ours were promised them, and
//! that nobody has zeroed.
//!
//! They are *surplus*: a promise that is given back takes its page out of the pool, and the kernel
//! gives all back when the process ends, however it does. The page that came last is on top: it is
//! the first that goes, and the one that a mapping gets that is touched. Counts are huge pages.

use std::io::ErrorKind;

use super::Builder;
use crate::contig::Error;
use crate::error::OsError;
use crate::mapping::Mapping;
use crate::units::{Bytes, PageSize, Pages};

/// Mappings of pages that are set aside and not touched, the last that came on top.
pub(super) struct Promised {
    mappings: Vec<Mapping>,
    size: PageSize,
}

impl Promised {
    pub fn new(size: PageSize) -> Self {
        Self { mappings: Vec::new(), size }
    }

    pub fn pages(&self) -> u64 {
        self.mappings.iter().map(|mapping| mapping.len().pages_up(self.size).get()).sum()
    }

    /// Has `pages` more set aside: all of them, or none where the pool cannot be given them.
    /// Returns how many came.
    pub fn more(&mut self, builder: &Builder<'_>, pages: u64) -> Result<u64, Error> {
        if pages == 0 {
            return Ok(0);
        }
        match builder.private(pages) {
            Ok(mapping) => {
                self.mappings.push(mapping);
                Ok(pages)
            }
            Err(Error::Os(error)) if error.kind() == ErrorKind::OutOfMemory => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Gives the last `pages` back.
    pub fn less(&mut self, pages: u64) -> Result<(), OsError> {
        let mut left = Pages::new(pages).bytes(self.size);
        while left > Bytes::ZERO {
            let Some(mut last) = self.mappings.pop() else { break };
            if last.len() > left {
                last.shorten(last.len() - left)?;
                left = Bytes::ZERO;
                self.mappings.push(last);
            } else {
                left = left - last.len();
            }
        }
        Ok(())
    }

    /// The mapping on top, which gets the pages that came last when it is touched.
    pub fn take(&mut self) -> Option<Mapping> {
        self.mappings.pop()
    }
}
