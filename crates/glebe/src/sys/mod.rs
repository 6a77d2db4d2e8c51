//! The only files that call the kernel: thin functions, no policy, [`OsError`](crate::error::OsError) out.

mod page;

pub use page::page_size;
