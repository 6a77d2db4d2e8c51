//! [`Worker`] is a child with a [`Peer`]'s allocator, in a memory cgroup if given.
//!
//! A worker does one [`Job`] and answers in JSON, one line per step. It waits for a line before
//! each step that the parent times. If a worker is killed, the report's rows say so.

use std::io::{self, BufRead, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::{bursts, ebizzy, give_back, sizes};
use crate::child::Child;
use crate::pressure::{enter, Group};
use crate::Outcome;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    Ebizzy(ebizzy::EbizzyPlan),
    GiveBack(give_back::GiveBackPlan),
    Bursts(bursts::BurstPlan),
    Sizes(sizes::SizePlan),
}

/// Replaces the group's directory where there is no group.
const NO_GROUP: &str = "";

pub(super) struct Worker(Child);

impl Worker {
    pub(super) fn start(peer: &Peer, group: Option<&Group>, job: &Job) -> Outcome<Self> {
        let dir = group.map_or(NO_GROUP.into(), |group| group.dir().display().to_string());
        let words = [dir.as_str(), &serde_json::to_string(job)?];
        Ok(Self(Child::start_as("malloc", &words, |command| peer.set(command))?))
    }

    /// Sends the worker its next step. Ignores errors, because [`Worker::answer`] notices a killed
    /// worker.
    pub(super) fn go(&mut self, step: &str) {
        let _ = self.0.tell(step);
    }

    /// Returns the next answer; `None` if the worker was killed.
    pub(super) fn answer<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        Ok(self.0.line()?.map(|line| serde_json::from_str(&line)).transpose()?)
    }

    pub(super) fn step<T: DeserializeOwned>(&mut self, step: &str) -> Outcome<Option<T>> {
        self.go(step);
        self.answer()
    }

    /// Returns true unless the worker was killed. Fails if the worker failed.
    pub(super) fn end(self) -> Outcome<bool> {
        Ok(self.0.answer()?.is_some())
    }
}

/// Lets all workers begin a step at once. Returns the answers of the workers that were not killed.
pub(super) fn together<T: DeserializeOwned>(workers: &mut [Worker]) -> Outcome<Vec<T>> {
    workers.iter_mut().for_each(|worker| worker.go(""));
    let answers = workers.iter_mut().map(Worker::answer);
    Ok(answers.collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Enters the cgroup `group` and does the job.
pub(crate) fn inside(group: &Path, job: &str, out: &mut dyn Write) -> Outcome {
    if group != Path::new(NO_GROUP) {
        enter(group);
    }
    match serde_json::from_str(job)? {
        Job::Ebizzy(plan) => ebizzy::inside(plan, out),
        Job::GiveBack(plan) => give_back::inside(plan, out),
        Job::Bursts(plan) => bursts::inside(&plan, out),
        Job::Sizes(plan) => sizes::inside(plan, out),
    }
}

/// Waits for a step, in the worker. Returns false at the end of the input. Allocates nothing once
/// `line` is long enough.
pub(super) fn next_step(line: &mut String) -> Outcome<bool> {
    line.clear();
    let len = io::stdin().lock().read_line(line)?;
    line.truncate(line.trim_end().len());
    Ok(len > 0)
}

pub(super) fn say(out: &mut dyn Write, answer: &impl Serialize) -> Outcome {
    serde_json::to_writer(&mut *out, answer)?;
    Ok(writeln!(out)?)
}
