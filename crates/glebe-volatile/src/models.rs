//! Models of pins for the model checker (`RUSTFLAGS="--cfg loom"`). They run the crate's own source
//! with a model of the shared file and its locks.

pub(crate) mod ledger;
mod pins;
