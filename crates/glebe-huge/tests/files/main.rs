//! Tests segments and files of huge pages: C programs run with the library, on a daemon of the
//! test's, while the kernel's pool is empty.

mod memfds;
mod mounted;
mod running;
mod segments;
