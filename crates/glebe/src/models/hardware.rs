//! Model hardware replaces the kernel and mapped memory.

pub(crate) mod critical;
pub(crate) mod frames;
pub(crate) mod table;

pub(crate) mod access {
    pub(crate) use super::critical::*;
    pub(crate) use super::frames::Frames;
}
