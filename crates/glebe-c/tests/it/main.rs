//! The tests of the interface for C and C++: its header, its libraries, programs that call it, and
//! the installation.

mod built;
mod header;
mod install;
mod programs;
mod symbols;
