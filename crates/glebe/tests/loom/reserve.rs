//! The reserve's own source, with model hardware in place of the kernel's and of mapped memory.

pub(crate) mod critical;
pub(crate) mod frames;
pub(crate) mod table;

/// As in the reserve, where the two are one file.
pub(crate) mod access {
    pub(crate) use super::critical::*;
    pub(crate) use super::frames::Frames;
}

#[allow(dead_code)]
#[path = "../../src/reserve/index.rs"]
pub(crate) mod index;
#[allow(dead_code, unused_imports)]
#[path = "../../src/reserve/lent/mod.rs"]
pub(crate) mod lent;
#[allow(dead_code)]
#[path = "../../src/reserve/stock.rs"]
pub(crate) mod stock;
#[allow(dead_code)]
#[path = "../../src/reserve/words.rs"]
pub(crate) mod words;
