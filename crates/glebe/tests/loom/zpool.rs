//! The pool's own source, with model words in place of mapped memory.
//!
//! A page has 512 bytes, a zspage one page with two slots, and an object two words. Models look at
//! the words that are contended, and not at how pages and entries are supplied.

#[allow(dead_code, unused_imports)]
#[path = "../../src/zpool/class/mod.rs"]
pub(crate) mod class;
#[allow(dead_code)]
#[path = "../../src/zpool/entry/mod.rs"]
pub(crate) mod entry;
#[path = "zpool/memory.rs"]
pub(crate) mod memory;
#[allow(dead_code)]
#[path = "../../src/zpool/objects.rs"]
pub(crate) mod objects;
#[allow(dead_code)]
#[path = "../../src/zpool/shared.rs"]
pub(crate) mod shared;
