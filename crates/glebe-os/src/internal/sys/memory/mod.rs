//! This process's memory: mappings and pages.

pub mod brick;
pub mod child_zeros;
pub mod commit;
pub mod direct;
pub mod direct_files;
pub mod direct_segments;
pub mod dma_heap;
pub mod io_uring;
pub mod madvise;
pub mod map_budget;
pub mod map_count;
pub mod memfd;
pub mod memory_file;
pub mod mincore;
pub mod mmap;
pub mod own;
pub mod page_faults;
pub mod pagemap;
pub mod peek;
pub mod place;
pub mod uffd;
pub mod vma;
