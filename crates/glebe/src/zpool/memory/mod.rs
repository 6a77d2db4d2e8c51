//! What a pool is made of below its objects: addresses, pages, tables of words, numbers of zspages,
//! pins, and the account of it all.

pub(crate) mod account;
pub(crate) mod bits;
pub(crate) mod frames;
pub(crate) mod pages;
pub(crate) mod pins;
pub(crate) mod words;
pub(crate) mod zspages;
