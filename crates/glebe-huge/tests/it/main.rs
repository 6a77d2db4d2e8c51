//! Tests the preload for huge pages with C programs and a daemon, while the kernel's pool is empty.

mod daemons;
mod ends;
mod memfds;
mod mounted;
mod offering;
mod offers;
mod running;
mod segments;
mod traps;
