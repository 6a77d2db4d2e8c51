//! Tests kernel calls, as one program. A new file needs a `mod` line below.
//!
//! Tests may run side by side in one process. A test that counts or changes process-wide state, or
//! that forks, must begin with `glebe_testing::alone!()`: a child inherits every lock that another
//! test holds.

mod cgroup_limits;
mod probe_leaves_nothing;
mod probe_seccomp;
mod sigbus;
mod test_group;
