//! Tests free extents and views through the public interface, as one program.
//!
//! Tests run side by side in one process. A test that counts or changes process-wide state, or that
//! forks, must begin with `glebe_testing::alone!()`, because a child inherits locks of other tests.

mod short_of_memory;
mod vmap;
