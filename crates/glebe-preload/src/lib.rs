//! glebe-malloc under the names of the C library and of C++, for LD_PRELOAD.
#![deny(unsafe_code)]

// L1: reports, and objects while the heap starts
mod early;
mod report;

// L2: work done once, or seldom
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

use pages::internal::Own;

#[global_allocator]
static OWN: Own = Own;
