//! Tables of size classes, by the kernel's rules or fitted to the objects.

pub(crate) mod fitted;
pub(crate) mod table;
