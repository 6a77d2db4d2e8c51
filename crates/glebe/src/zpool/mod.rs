//! Objects of any size up to a page, packed across page borders into a few pages at a time.
//!
//! An *object* lies in a *slot* of a *zspage*, a run of 1 to 16 pages. A zspage has slots of one
//! *size class*; the *table* ([`Table`]) is the set of classes in use.

mod codec;
mod fitted;
mod histogram;
mod size_class;

pub use codec::{Codec, CodecError, Dictionary, Zstd};
pub use fitted::{Estimate, Metadata};
pub use histogram::{Counters, Histogram};
pub use size_class::{Rules, RulesError, SizeClass, Table};
