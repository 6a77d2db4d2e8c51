//! Tests the preload for huge pages with C programs and a daemon.

mod ends;
mod running;
mod traps;
