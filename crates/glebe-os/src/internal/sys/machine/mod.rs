//! Reads what exists once in the machine or cgroup: pools, zones, limits, pressure, clocks.

pub mod absent;
pub mod buddyinfo;
pub mod cgroup;
pub mod compact;
pub mod hugetlb;
pub mod kpage;
pub mod least_limit;
pub mod limits;
pub mod meminfo;
pub mod memory_block;
pub mod node_memory;
pub mod node_supply;
pub mod numa;
pub mod psi;
pub mod random;
pub mod swap;
pub mod ticks;
pub mod uptime;
pub mod usage_threshold;
pub mod zones;
