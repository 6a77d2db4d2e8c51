//! Parts of a pool below its objects.

pub(crate) mod account;
pub(crate) mod bits;
pub(crate) mod frames;
pub(crate) mod pages;
pub(crate) mod pins;
pub(crate) mod zspages;

pub(crate) use glebe_os::internal::words;
