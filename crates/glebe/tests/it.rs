//! Tests of the library through its public interface. They are one program, since each program
//! links the whole library. A new file here needs a `mod` line below.
//!
//! The tests of all modules may run in one process, side by side. So a test that counts or changes
//! what the whole process has begins with `glebe_testing::alone!()`, and so does each test that
//! forks: a child has a copy of every lock that another test holds.

// What the tests share.
mod cgroup;
mod node_pool;
mod stressed;
mod turn;

mod address_space;
mod blocks;
mod cache;
mod chase;
mod contig;
mod contig_cgroup;
mod emptied_pool;
mod examples_output;
mod first_use;
mod fork;
mod given_back;
mod object_pool;
#[cfg(all(feature = "lz4", feature = "zstd"))]
mod object_pool_oracle;
mod openmetrics;
mod outlived;
#[cfg(all(feature = "lz4", feature = "zstd"))]
mod page_cache_compressed;
mod pool_stress;
mod probe_leaves_nothing;
mod probe_seccomp;
mod reclaim;
mod reserve;
mod resize;
mod served;
mod shared;
mod short_of_memory;
mod sigbus;
mod stopped_writer;
mod stress;
mod stress_objects;
mod stress_shared;
mod stress_volatile;
mod swap_area;
mod swap_days;
mod swap_region;
mod swap_region_signal;
mod swap_store;
mod swap_storm;
mod vmap;
mod volatile;
mod volatile_processors;
mod volatile_threads;
#[cfg(all(feature = "lz4", feature = "zstd"))]
mod zpool_oracle;
mod zpool_threads;
