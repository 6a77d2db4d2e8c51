//! glebe-malloc under the names of the C library and of C++, for LD_PRELOAD.
//!
//! Every name that allocates tests one word first ([`entry`]); where it is zero, the call is
//! mimalloc's. Names of the C library that exist for its own allocator's sake are answered from the
//! heap's statistics.
#![deny(unsafe_code)]

// L1: reports, and objects while the heap starts
mod early;
mod report;

// L2: what happens once in a process, or seldom
mod elsewhere;
mod entry;

// L3: the names
mod aliases;
mod aligned;
mod calls;
mod delete;
mod dlopen;
mod info;
mod malloc;
mod new;

#[global_allocator]
static OWN: pages::Own = pages::Own;
