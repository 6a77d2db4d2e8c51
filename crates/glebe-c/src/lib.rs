//! The C interface. `include/glebe.h` is its reference.
//!
//! Each module in the list uses only modules above it. The crate has no policy: a call checks its
//! arguments, finds its object by handle, calls the library, and returns the answer.
//!
//! For most handles, a call adds two loads, which detect a forked child, and a shared lock on its
//! object. Making or ending an object adds a compare-and-exchange on the list of free handles.
//! In this crate, calls on different handles share no lock.
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
mod lease;
mod reserve;
mod shared_cache;
mod stats;
mod view;
mod volatile;
mod zpool;

mod swap;

mod reclaimer;
