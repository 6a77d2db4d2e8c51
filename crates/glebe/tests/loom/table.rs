//! Tables of model words, which must lie in ordinary memory.

use std::ops::Deref;

use glebe::error::OsError;

pub(crate) struct Tables;

impl Tables {
    pub(crate) fn table<T>(
        &mut self,
        len: usize,
        element: impl FnMut(usize) -> T,
    ) -> Result<Table<T>, OsError> {
        Ok(Table((0..len).map(element).collect()))
    }
}

#[derive(Debug)]
pub(crate) struct Table<T>(Box<[T]>);

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
