//! The only files that call the kernel: thin functions, no policy,
//! [`OsError`](crate::error::OsError) out.

pub mod cgroup;
pub mod fork;
pub mod hugetlb;
pub mod lock_file;
pub mod madvise;
pub mod membarrier;
pub mod meminfo;
pub mod mmap;
mod page;
pub mod pagemap;
pub mod process;
pub mod rseq;

pub use page::page_size;
