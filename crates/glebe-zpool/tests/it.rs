//! Tests the object pool through the public interface, as one program.
//!
//! Tests run side by side in one process. A test that counts or changes process-wide state, or that
//! forks, must begin with `glebe_testing::alone!()`, because a child inherits locks of other tests.

#[cfg(all(feature = "lz4", feature = "zstd"))]
mod zpool_oracle;
mod zpool_threads;
