//! Tests the preload for huge pages with C programs and a daemon.

mod ends;
mod offers;
mod running;
mod traps;
