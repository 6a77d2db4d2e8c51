//! All tests are one program, because each test program links the whole library.
//!
//! Tests may run side by side in one process. A test that counts or changes process-wide state, or
//! that forks, must begin with `glebe_testing::alone!()`, because a child inherits every lock that
//! another test holds.

mod node_pool;

mod address_space;
mod blocks;
mod chase;
mod closed;
mod contig;
mod contig_cgroup;
#[cfg(feature = "cuda")]
mod cuda;
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
mod reclaim;
mod reserve;
mod resize;
mod served;
mod stopped_writer;
mod stress;
mod stress_objects;
mod stress_shared;
mod swap_area;
mod swap_days;
mod swap_region;
mod swap_region_signal;
mod swap_store;
mod swap_storm;
