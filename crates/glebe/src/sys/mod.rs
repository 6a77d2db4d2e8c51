//! Only this module's files call the kernel: thin functions without policy that return
//! [`OsError`](crate::error::OsError).

pub mod atfork;
pub(crate) mod bounded_write;
pub mod broken_pipe;
pub mod buddyinfo;
pub(crate) mod call;
pub mod cgroup;
#[cfg(test)]
pub(crate) mod child;
pub mod child_zeros;
pub mod children;
pub(crate) mod claim;
pub(crate) mod commit;
pub(crate) mod compact;
pub mod dma_heap;
pub mod environment;
pub(crate) mod epoll;
pub mod errno;
pub(crate) mod event_fd;
#[cfg(feature = "faults")]
pub mod fault;
#[cfg(not(feature = "faults"))]
pub(crate) mod fault;
pub(crate) mod file;
pub mod fork;
pub mod futex;
pub mod handler;
pub mod hugetlb;
pub(crate) mod io_uring;
pub mod kpage;
pub mod lean;
pub mod least_limit;
pub(crate) mod limits;
pub mod lock_file;
pub mod madvise;
pub(crate) mod map_budget;
pub mod map_count;
pub mod membarrier;
pub mod memfd;
pub mod meminfo;
pub mod memory_block;
pub(crate) mod memory_file;
pub mod mincore;
pub mod mmap;
pub(crate) mod node_memory;
pub mod numa;
pub(crate) mod ofd_lock;
pub(crate) mod one_processor;
pub(crate) mod own;
pub mod own_files;
mod page;
pub(crate) mod page_faults;
pub mod pagemap;
pub mod peek;
pub mod place;
pub mod plain_file;
pub(crate) mod private;
pub mod probe;
pub mod process;
pub(crate) mod processor_time;
pub(crate) mod psi;
#[cfg(feature = "encrypt")]
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod real_time;
pub mod rseq;
pub(crate) mod scratch_file;
pub mod sigbus;
pub(crate) mod signal_frame;
pub mod signals;
pub(crate) mod socket;
pub mod stand_in;
pub mod stream;
pub(crate) mod swap;
pub mod symbols;
pub(crate) mod thread;
pub(crate) mod ticks;
pub(crate) mod uffd;
pub(crate) mod unread;
pub(crate) mod uptime;
pub(crate) mod usage_threshold;
pub mod vma;
pub(crate) mod zones;

pub use page::page_size;

/// True if tests can make calls fail.
pub const FAULTS: bool = cfg!(feature = "faults");
