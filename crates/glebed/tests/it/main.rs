//! Tests the daemon by its socket, with the client of glebe-lease and with raw messages.

mod bad_days;
mod caches;
mod kills;
mod leases;
mod reached;
mod running;
