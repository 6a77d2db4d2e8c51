//! Tests of the C and C++ interface: header, libraries, programs that call it, and installation.

mod built;
mod header;
mod install;
mod programs;
mod symbols;
