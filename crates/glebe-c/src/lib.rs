//! The C interface. `include/glebe.h` is its reference.
//!
//! Each module in the list uses only modules above it. The crate has no policy: a call checks its
//! arguments, finds its object by handle, calls the library, and returns a number.
//!
//! A call adds two loads that detect a forked child; on a reserve or a pool, the shared lock of its
//! thread's lane; for an allocation or a free, a compare-and-exchange on the list of free handles
//! and the lock of the handle's slot. Calls on different handles share no lock.
#![deny(unsafe_code)]

mod abi;
mod failure;

mod mapped;

mod slots;

mod table;

mod references;
mod runs;

mod pinned;
mod sharing;

mod process;

mod boundary;

mod descriptor;
mod place;

mod block;
mod cache;
mod contig;
mod reserve;
mod stats;
mod view;
mod volatile;
mod zpool;

mod swap;

mod reclaimer;
