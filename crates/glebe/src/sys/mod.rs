//! The only files that call the kernel: thin functions, no policy, [`OsError`](crate::error::OsError) out.

pub(crate) mod io_uring;
mod page;
pub mod probe;
pub(crate) mod psi;
pub(crate) mod uffd;

pub use page::page_size;
