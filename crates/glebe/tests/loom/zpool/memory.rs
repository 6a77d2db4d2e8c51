//! The pool's memory, of model words where it is mapped.

#[path = "frames.rs"]
pub(crate) mod frames;
#[path = "words.rs"]
pub(crate) mod words;

#[allow(dead_code)]
#[path = "../../../src/zpool/memory/account.rs"]
pub(crate) mod account;
#[allow(dead_code)]
#[path = "../../../src/zpool/memory/bits.rs"]
pub(crate) mod bits;
#[allow(dead_code)]
#[path = "../../../src/zpool/memory/pages.rs"]
pub(crate) mod pages;
#[allow(dead_code)]
#[path = "../../../src/zpool/memory/pins.rs"]
pub(crate) mod pins;
#[allow(dead_code)]
#[path = "../../../src/zpool/memory/zspages.rs"]
pub(crate) mod zspages;
