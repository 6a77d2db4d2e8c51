//! Tables of model words, which must lie in ordinary memory and are always present.

use std::ops::Deref;

use glebe::error::OsError;
use glebe::units::Bytes;

use crate::sync::MappedWord;

#[derive(Debug)]
pub(crate) struct Words(Box<[MappedWord]>);

impl Words {
    pub(crate) fn new(len: usize) -> Self {
        Self((0..len).map(|_| MappedWord::new(0)).collect())
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn populate(&self, _index: usize, _page: Bytes) -> Result<(), OsError> {
        Ok(())
    }

    pub(crate) fn discard(&self, _index: usize, _page: Bytes) -> Result<(), OsError> {
        unreachable!("no model gives a page of a table back")
    }
}

impl Deref for Words {
    type Target = [MappedWord];

    fn deref(&self) -> &[MappedWord] {
        &self.0
    }
}
