//! [`Job`]: what a child does inside a memory cgroup, told in its arguments and answered on its
//! standard output, both as JSON.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{kept, purge, stress, tiles, Error};
use crate::pressure::{enter, Counters, Group};

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Answers [`stress::Counts`].
    Stress(stress::Plan),
    /// Answers a list of `purge::Taken`.
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
        Job::Stress(plan) => serde_json::to_string(&stress::inside(&plan)?)?,
        Job::Purge(plan) => serde_json::to_string(&purge::inside(&plan)?)?,
        Job::Kept(plan) => serde_json::to_string(&kept::inside(&plan)?)?,
        Job::Tiles(plan) => serde_json::to_string(&tiles::inside(&plan)?)?,
    };
    let said = writeln!(out, "{answer}").and_then(|()| out.flush());
    Ok(said.map_err(|e| glebe::error::OsError::new("write", "standard output", e))?)
}

/// Has a child do `job` in `group`; `None` if the kernel killed it because memory ran out.
pub(super) fn ask<T: DeserializeOwned>(
    group: &Group,
    job: &Job,
    patience: Duration,
    progress: impl FnMut(Duration),
) -> Result<(Option<T>, Counters), Error> {
    let (answer, counters) =
        group.ask("inside", &[&serde_json::to_string(job)?], patience, progress)?;
    Ok((answer.map(|text| serde_json::from_str(&text)).transpose()?, counters))
}
