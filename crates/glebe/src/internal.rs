//! Items for glebe's other crates and tests, which change without notice.
#![allow(missing_docs, clippy::missing_errors_doc)]

use std::path::{Path, PathBuf};

use crate::reclaim::{Policy, ReclaimError, Reclaimer};
use crate::reserve::ReserveError;

pub use crate::reclaim::gauge::{Free, Gauge, Reading};
pub use crate::reclaim::plan::{plan, PartStats, Targets};
pub use crate::reserve::by_node::{
    describe_nodes, node_lines, with_node_family, with_node_members, NodeBytes,
};
pub use crate::reserve::closed::{ClosedBlock, LostPages};
pub use crate::reserve::near::NodeTeller;
pub use crate::reserve::options::{with_nodes, with_writers};
pub use crate::swap::options::without_moves;
pub use crate::swap::raw::{key_from_raw, key_to_raw, object_len};
pub use glebe_os::internal::*;

/// Returns the directory where this user's processes serve statistics.
pub fn served_dir() -> Result<PathBuf, ReserveError> {
    crate::reserve::served::own_dir()
}

/// Creates a reclaimer with `root` in place of `/`.
pub fn reclaimer_below(root: &Path, policy: Policy) -> Result<Reclaimer, ReclaimError> {
    Reclaimer::below(root, policy)
}

/// Creates a gauge with `root` in place of `/`.
pub fn gauge_below(root: &Path, policy: Policy) -> Result<Gauge, ReclaimError> {
    Gauge::below(root, policy)
}
