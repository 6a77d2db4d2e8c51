//! [`Promised`] owns untouched mappings, to which the kernel promises huge pages.
//!
//! *Surplus* pages join the pool for a mapping, and as many leave the pool when a mapping or the
//! process ends, the newest first. A touch of a mapping takes the newest page too.

use std::io::ErrorKind;

use super::Builder;
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::units::{Bytes, PageSize, Pages};

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

    /// Promises `pages` more, or none. Returns the number that came.
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

    pub fn take(&mut self) -> Option<Mapping> {
        self.mappings.pop()
    }
}
