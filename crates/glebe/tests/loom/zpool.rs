//! The pool's own source, with model words in place of mapped memory.
//!
//! A page has 512 bytes, a zspage one page with two slots, and an object two words. Models look at
//! the words that are contended, and not at how pages and entries are supplied.

#[path = "zpool/frames.rs"]
pub(crate) mod frames;
#[path = "zpool/words.rs"]
pub(crate) mod words;

#[allow(dead_code)]
#[path = "../../src/zpool/account.rs"]
pub(crate) mod account;
#[allow(dead_code)]
#[path = "../../src/zpool/bits.rs"]
pub(crate) mod bits;
#[allow(dead_code, unused_imports)]
#[path = "../../src/zpool/class.rs"]
pub(crate) mod class;
#[allow(dead_code)]
#[path = "../../src/zpool/classes.rs"]
pub(crate) mod classes;
#[allow(dead_code)]
#[path = "../../src/zpool/counts.rs"]
pub(crate) mod counts;
#[allow(dead_code)]
#[path = "../../src/zpool/entries.rs"]
pub(crate) mod entries;
#[allow(dead_code)]
#[path = "../../src/zpool/entry.rs"]
pub(crate) mod entry;
#[allow(dead_code)]
#[path = "../../src/zpool/groups.rs"]
pub(crate) mod groups;
#[allow(dead_code)]
#[path = "../../src/zpool/memory.rs"]
pub(crate) mod memory;
#[allow(dead_code)]
#[path = "../../src/zpool/objects.rs"]
pub(crate) mod objects;
#[allow(dead_code)]
#[path = "../../src/zpool/pages.rs"]
pub(crate) mod pages;
#[allow(dead_code)]
#[path = "../../src/zpool/pins.rs"]
pub(crate) mod pins;
#[allow(dead_code)]
#[path = "../../src/zpool/zspage.rs"]
pub(crate) mod zspage;
