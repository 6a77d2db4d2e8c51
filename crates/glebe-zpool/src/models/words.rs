//! Tables of model words, in ordinary memory and always present.

use std::ops::Deref;

use glebe_os::error::OsError;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::units::Bytes;

const PAGE: usize = 64;
const USED: usize = 8;

#[derive(Debug)]
pub struct Words(Box<[MappedWord]>);

impl Words {
    pub(crate) fn new(len: usize) -> Self {
        let word = |at| if at % PAGE < USED { MappedWord::new(0) } else { MappedWord::late(0) };
        Self((0..len).map(word).collect())
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn populate(&self, _index: usize, _page: Bytes) -> Result<(), OsError> {
        Ok(())
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn discard(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        let first = index * page.get() as usize / size_of::<u64>();
        self.0[first..].iter().take(USED).for_each(|word| word.store(0, Ordering::SeqCst));
        Ok(())
    }
}

impl Deref for Words {
    type Target = [MappedWord];

    fn deref(&self) -> &[MappedWord] {
        &self.0
    }
}
