//! Models check pins (`RUSTFLAGS="--cfg loom"`) with the crate's own source and a model of the
//! file.

pub(crate) mod ledger;
mod pins;
