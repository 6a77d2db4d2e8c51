//! Models for loom (`RUSTFLAGS="--cfg loom"`), with model slots and tables in place of mapped
//! memory.

mod objects;
pub(crate) mod slots;
pub(crate) mod words;
