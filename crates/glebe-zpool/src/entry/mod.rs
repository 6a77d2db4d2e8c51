//! Handles, the word behind each handle, and the table of these words.

pub(crate) mod handle;
pub(crate) mod table;
pub(crate) mod word;
