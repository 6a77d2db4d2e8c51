//! [`Job`]: what a child does inside a memory cgroup, told in its arguments and answered on its
//! standard output, both as JSON.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use glebe::units::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{kept, purge, tiles, Error};
use crate::pressure::{enter, Counters, Group};

/// No job takes as long on a machine that does anything else at all.
const PATIENCE: Duration = Duration::from_secs(300);

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Answers `purge::Answer`.
    Purge(purge::Plan),
    /// Answers `kept::Kept`.
    Kept(kept::Plan),
    /// Answers `tiles::Served`.
    Tiles(tiles::Plan),
}

/// In the child: enters the group and does the job. To be called before there is a second thread.
///
/// # Errors
/// If it does not come into the group, the words are no job, or it cannot be done.
pub fn inside(dir: &Path, job: &str, out: &mut dyn Write) -> Result<(), Error> {
    enter(dir)?;
    let answer = match serde_json::from_str(job)? {
        Job::Purge(plan) => serde_json::to_string(&purge::inside(&plan)?)?,
        Job::Kept(plan) => serde_json::to_string(&kept::inside(&plan)?)?,
        Job::Tiles(plan) => serde_json::to_string(&tiles::inside(&plan)?)?,
    };
    let said = writeln!(out, "{answer}").and_then(|()| out.flush());
    Ok(said.map_err(|e| glebe::error::OsError::new("write", "standard output", e))?)
}

/// Has a child do a job in a group of its own; `None` if the kernel killed it because memory ran
/// out.
pub(super) fn ask<T: DeserializeOwned>(
    limit: Bytes,
    job: impl FnOnce(&Group) -> Job,
) -> Result<(Option<T>, Counters), Error> {
    let group = Group::of(limit)?;
    let job = serde_json::to_string(&job(&group))?;
    let (answer, counters) = group.ask("inside", &[&job], PATIENCE)?;
    Ok((answer.map(|text| serde_json::from_str(&text)).transpose()?, counters))
}
