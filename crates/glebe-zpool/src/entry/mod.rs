//! Handles, and the table with a word for each handle.

pub(crate) mod handle;
pub(crate) mod table;
pub(crate) mod word;
