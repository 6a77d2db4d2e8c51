//! Only this module's files call the kernel: thin functions without policy that return
//! [`OsError`](crate::error::OsError).

pub mod atfork;
pub mod bounded_write;
pub mod broken_pipe;
pub mod buddyinfo;
pub mod call;
pub mod cgroup;
pub mod child_zeros;
pub mod children;
pub mod claim;
pub mod commit;
pub mod compact;
pub mod dma_heap;
pub mod environment;
pub mod epoll;
pub mod errno;
pub mod event_fd;
#[cfg(feature = "faults")]
pub mod fault;
#[cfg(not(feature = "faults"))]
pub mod fault;
pub mod file;
pub mod fork;
pub mod futex;
pub mod handler;
pub mod hugetlb;
pub mod io_uring;
pub mod kpage;
pub mod lean;
pub mod least_limit;
pub mod limits;
pub mod lock_file;
pub mod madvise;
pub mod map_budget;
pub mod map_count;
pub mod membarrier;
pub mod memfd;
pub mod meminfo;
pub mod memory_block;
pub mod memory_file;
pub mod mincore;
pub mod mmap;
pub mod node_memory;
pub mod numa;
pub mod ofd_lock;
pub mod one_processor;
pub mod own;
pub mod own_files;
mod page;
pub mod page_faults;
pub mod pagemap;
pub mod peek;
pub mod place;
pub mod plain_file;
pub mod private;
pub mod probe;
pub mod process;
pub mod processor_time;
pub mod psi;
pub mod random;
pub mod rseq;
pub mod scratch_file;
pub mod sigbus;
pub mod signal_frame;
pub mod signals;
pub mod socket;
pub mod stand_in;
pub mod stream;
pub mod swap;
pub mod symbols;
pub mod thread;
pub mod ticks;
pub mod uffd;
pub mod unread;
pub mod uptime;
pub mod usage_threshold;
pub mod vma;
pub mod zones;

pub use page::page_size;

/// True if tests can make calls fail.
pub const FAULTS: bool = cfg!(feature = "faults");
