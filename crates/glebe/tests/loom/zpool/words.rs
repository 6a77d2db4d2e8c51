//! Tables of model words, which must lie in ordinary memory and are always present.

use std::ops::Deref;

use glebe::error::OsError;
use glebe::units::Bytes;

use crate::sync::{MappedWord, Ordering};

/// Words of a page that models use.
const USED: usize = 3;

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

    /// The first words of a page: models use no others.
    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn discard(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        let first = index * page.get() as usize / size_of::<u64>();
        self.0[first..][..USED].iter().for_each(|word| word.store(0, Ordering::SeqCst));
        Ok(())
    }
}

impl Deref for Words {
    type Target = [MappedWord];

    fn deref(&self) -> &[MappedWord] {
        &self.0
    }
}
