//! Models for the model checker (`RUSTFLAGS="--cfg loom"`). They run the crate's own source with
//! model slots and tables in place of mapped memory.

mod objects;
pub(crate) mod slots;
pub(crate) mod words;
