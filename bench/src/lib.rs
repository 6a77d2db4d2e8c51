//! Peers, workloads and measurements for glebe.
