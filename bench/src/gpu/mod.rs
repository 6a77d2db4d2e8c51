//! Copies between a GPU and host memory that was had in each way: the library's, ordinary memory,
//! and what the CUDA driver pins itself.
//!
//! Units: megabytes (10^6) a second, microseconds, all of wall time: the device does the work.

mod driver;
pub mod measure;
