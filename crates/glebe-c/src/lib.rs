//! The C interface: `include/glebe.h` is its reference, this crate only carries it out.
//!
//! The modules form an ordered list; each uses only those above it in this list. Nothing of the
//! library's policy is here: a call checks its arguments, finds its object by handle, calls the
//! library, and turns the answer into a number.
//!
//! Cost of a call beside the library's own: two loads that know a forked child; one reader's lock
//! of the thread's own lane for a reserve or a pool; for an allocation or a free also one exchange
//! on the list of free handles and the lock of the handle's own slot. No lock is shared by calls
//! on different handles.
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
