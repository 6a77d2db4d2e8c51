//! Huge pages of a glebe daemon for programs that ask the kernel for them.
//!
//! `glebe run --contig` preloads this library. It answers mmap(2) with `MAP_HUGETLB`, shmget(2)
//! with `SHM_HUGETLB`, memfd_create(2) with `MFD_HUGETLB` and new files on hugetlbfs by leases: the
//! daemon's files, mapped side by side. Requests that the daemon refuses go to the kernel. Calls
//! that would change such memory, or close its descriptors, come here too.
//!
//! The mappings are shared ones, so the library keeps what a private mapping promises: a forked
//! child gets a copy, and `MADV_DONTNEED` zeroes.
#![deny(unsafe_code)]

// L0: what the user set, and what happened
mod counts;
mod next;
mod own_files;
mod settings;

// L1: the pieces of leases that are mapped
mod pieces;

// L2: memory
mod place;
mod view;

// L3: the one state of the process, and what it consists of
mod files;
mod loan;
mod segments;
mod state;
mod tokens;

// L4: what the calls do
mod advise;
mod fork;
mod lease;
mod lengths;
mod moves;
mod offers;
mod seals;
mod unmap;

// L5: the names
mod entry;
mod file_maps;
mod mounts;
mod names;
mod names_files;
mod names_segments;
mod shown;

/// The library's own objects. The program's malloc may be waiting for this library.
#[global_allocator]
static OWN: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
