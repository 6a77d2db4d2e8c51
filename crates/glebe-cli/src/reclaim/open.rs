//! [`Open`] is an open file and what was logged about it, so that each change is logged once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use glebe::reclaim::Reclaimer;
use glebe::units::Bytes;
use glebe::volatile::{Error, Look, Priority, Purger};

use super::log::Log;

/// Identity of a file: device and inode number.
pub type Id = (u64, u64);

#[derive(Clone, Copy)]
pub struct Judge<'a> {
    pub reclaimer: &'a Reclaimer,
    pub log: Log,
    pub quota: Option<Bytes>,
    pub is_short: bool,
}

pub struct Open {
    name: String,
    purger: Arc<Purger>,
    id: Id,
    is_used: Option<bool>,
    /// Processes that were over the quota at the last check.
    over: BTreeSet<u32>,
    is_stuck: bool,
    freed: [Bytes; Priority::HIGHEST.get() as usize + 1],
}

impl Open {
    pub fn new(path: &Path, reclaimer: &Reclaimer) -> Result<Self, String> {
        let purger = Purger::open(path).map_err(|e| e.to_string())?;
        if !purger.claim().map_err(|e| e.to_string())? {
            return Err("another purger has it".into());
        }
        let purger = Arc::new(purger);
        reclaimer.add(&purger).map_err(|e| e.to_string())?;
        let id = id(&purger).map_err(|e| format!("fstat: {e}"))?;
        Ok(Self {
            name: path.display().to_string(),
            freed: purger.freed(),
            purger,
            id,
            is_used: None,
            over: BTreeSet::new(),
            is_stuck: false,
        })
    }

    pub fn id(&self) -> Id {
        self.id
    }

    /// Changes the name in the log after the path stopped naming this file.
    pub fn outlive(self) -> Self {
        Self { name: format!("the file that was {}", self.name), ..self }
    }

    /// Logs changes since the last call. Returns true if any process uses the file.
    ///
    /// # Errors
    /// If the file was truncated or cannot be checked.
    pub fn look(&mut self, judge: Judge<'_>) -> Result<bool, Error> {
        let look = self.purger.look()?;
        let is_used = !look.holders.is_empty();
        if self.is_used != Some(is_used) {
            self.tell_users(&look, judge.log);
            self.is_used = Some(is_used);
        }
        self.tell_quota(&look, judge);
        self.tell_stuck(&look, judge);
        Ok(is_used)
    }

    fn tell_users(&self, look: &Look, log: Log) {
        let Self { name, purger, .. } = self;
        let (len, granule) = (purger.len(), purger.granule());
        match look.holders.len() {
            0 => log.tell(format!("{name}: no process uses it: nothing of it is volatile")),
            1 => log.tell(format!("{name}: {len} in granules of {granule}, used by one process")),
            n => log.tell(format!("{name}: {len} in granules of {granule}, used by {n} processes")),
        }
    }

    fn tell_quota(&mut self, look: &Look, judge: Judge<'_>) {
        let Some(quota) = judge.quota else { return };
        let mut pinned = BTreeMap::<u32, Bytes>::new();
        for holder in &look.holders {
            let sum = pinned.entry(holder.process).or_default();
            *sum = Bytes::new(sum.get().saturating_add(holder.pinned.get()));
        }
        pinned.retain(|_, sum| *sum > quota);
        let name = &self.name;
        for (process, sum) in pinned.iter().filter(|(process, _)| !self.over.contains(process)) {
            judge.log.warn(format!("{name}: process {process} has {sum} pinned, over {quota}"));
        }
        for process in self.over.iter().filter(|process| !pinned.contains_key(process)) {
            judge.log.tell(format!("{name}: process {process} is not over the quota any more"));
        }
        self.over = pinned.into_keys().collect();
    }

    /// Warns if memory is short while all marked memory of the file is pinned. Repeats the warning
    /// only after some marked memory was not pinned.
    fn tell_stuck(&mut self, look: &Look, judge: Judge<'_>) {
        let none_to_go = look.marked_bytes.iter().all(|bytes| *bytes == Bytes::ZERO);
        let is_stuck = none_to_go && look.pinned_bytes > Bytes::ZERO;
        if is_stuck && judge.is_short && !self.is_stuck {
            let by: Vec<String> = look.holders.iter().map(|it| it.process.to_string()).collect();
            let (name, all, by) = (&self.name, look.pinned_bytes, by.join(", "));
            judge.log.warn(format!("{name}: all {all} that are marked are pinned; used by {by}"));
        }
        self.is_stuck = is_stuck && (judge.is_short || self.is_stuck);
    }

    pub fn tell_freed(&mut self, log: Log) {
        let freed = self.purger.freed();
        let parts = freed.iter().zip(self.freed).map(|(now, before)| now.saturating_sub(before));
        if let Some(told) = sums(parts) {
            log.tell(format!("{}: purged {told}", self.name));
        }
        self.freed = freed;
    }
}

/// Returns text such as "12 MiB: 8 MiB of priority 0, 4 MiB of priority 3"; `None` if all are zero.
pub fn sums(by_priority: impl Iterator<Item = Bytes>) -> Option<String> {
    let parts: Vec<_> = by_priority.enumerate().filter(|(_, freed)| *freed > Bytes::ZERO).collect();
    let sum = parts.iter().fold(Bytes::ZERO, |sum, (_, freed)| sum + *freed);
    let part = |(priority, freed): &(usize, Bytes)| format!("{freed} of priority {priority}");
    let told = parts.iter().map(part).collect::<Vec<_>>().join(", ");
    (!parts.is_empty()).then(|| format!("{sum}: {told}"))
}

pub fn id(purger: &Purger) -> io::Result<Id> {
    let meta = File::from(purger.fd().try_clone_to_owned()?).metadata()?;
    Ok((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_name_each_priority_that_has_any() {
        let told = sums([8, 0, 0, 4].map(Bytes::mib).into_iter());
        assert_eq!(told.unwrap(), "12 MiB: 8 MiB of priority 0, 4 MiB of priority 3");
        assert_eq!(sums([Bytes::ZERO; 8].into_iter()), None);
    }
}
