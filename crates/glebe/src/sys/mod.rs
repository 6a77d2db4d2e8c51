//! The only files that call the kernel: thin functions, no policy, [`OsError`](crate::error::OsError) out.

pub mod membarrier;
mod page;
pub mod rseq;

pub use page::page_size;
