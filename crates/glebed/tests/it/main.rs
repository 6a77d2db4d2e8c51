//! Tests the daemon by its socket, with the client of glebe-lease and with raw messages.

mod bad_days;
mod bricks;
mod caches;
mod chain;
mod daemon_kills;
mod growth;
mod kills;
mod leases;
mod marked;
mod outside;
mod reached;
mod running;
mod served;
