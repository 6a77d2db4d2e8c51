//! [`Worker`]: a child of this program that runs with a peer's allocator, inside a memory cgroup
//! where one is given.
//!
//! It does one [`Job`] and answers in JSON, one line a step; before a step that is measured it
//! waits for a line. A worker that the kernel kills gives no more answers: that is a result.

use std::io::{self, BufRead, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::{bursts, ebizzy, give_back, sizes};
use crate::child::Child;
use crate::pressure::{enter, Group};
use crate::Outcome;

/// What a worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    Ebizzy(ebizzy::Plan),
    GiveBack(give_back::Plan),
    Bursts(bursts::Plan),
    Sizes(sizes::Plan),
}

/// In place of a group's directory.
const NO_GROUP: &str = "";

pub(super) struct Worker(Child);

impl Worker {
    pub(super) fn start(peer: &Peer, group: Option<&Group>, job: &Job) -> Outcome<Self> {
        let dir = group.map_or(NO_GROUP.into(), |group| group.dir().display().to_string());
        let words = [dir.as_str(), &serde_json::to_string(job)?];
        Ok(Self(Child::start_as("malloc", &words, |command| peer.set(command))?))
    }

    /// Tells it to go on. One that was killed does not hear it, and is found by its answer.
    pub(super) fn go(&mut self, step: &str) {
        let _ = self.0.tell(step);
    }

    /// Its next answer; `None` if it was killed.
    pub(super) fn answer<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        Ok(self.0.line()?.map(|line| serde_json::from_str(&line)).transpose()?)
    }

    /// Tells it to do a step, and returns its answer.
    pub(super) fn step<T: DeserializeOwned>(&mut self, step: &str) -> Outcome<Option<T>> {
        self.go(step);
        self.answer()
    }

    /// Waits for its end; whether it came to it. An error if it failed.
    pub(super) fn end(self) -> Outcome<bool> {
        Ok(self.0.answer()?.is_some())
    }
}

/// Lets all of them go on at once; the answers of those that were not killed.
pub(super) fn together<T: DeserializeOwned>(workers: &mut [Worker]) -> Outcome<Vec<T>> {
    workers.iter_mut().for_each(|worker| worker.go(""));
    let answers = workers.iter_mut().map(Worker::answer);
    Ok(answers.collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
}

/// In the worker: enters the group, if there is one, and does the job. To be called before there is
/// a second thread.
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

/// In the worker: waits for the next step; `false` once there is none. Neither this nor an answer
/// allocates once `line` is long enough.
pub(super) fn next_step(line: &mut String) -> Outcome<bool> {
    line.clear();
    let len = io::stdin().lock().read_line(line)?;
    line.truncate(line.trim_end().len());
    Ok(len > 0)
}

/// In the worker: an answer.
pub(super) fn say(out: &mut dyn Write, answer: &impl Serialize) -> Outcome {
    serde_json::to_writer(&mut *out, answer)?;
    Ok(writeln!(out)?)
}
