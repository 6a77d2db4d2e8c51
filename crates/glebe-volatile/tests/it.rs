//! Tests volatile memory through the public interface, as one program.
//!
//! Tests may run side by side in one process. A test that counts or changes process-wide state, or
//! that forks, must begin with `glebe_testing::alone!()`: a child inherits every lock that another
//! test holds.

mod cache;
mod shared;
mod stress_volatile;
mod volatile;
mod volatile_processors;
mod volatile_threads;
