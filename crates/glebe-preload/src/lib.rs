//! glebe-malloc under the names of the C library and of C++, for LD_PRELOAD.
#![deny(unsafe_code)]

mod malloc;
