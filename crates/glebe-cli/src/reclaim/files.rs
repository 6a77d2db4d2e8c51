//! [`WatchedFiles`] holds, for each path, the file that the path names now, and earlier files that
//! a process still uses.
//!
//! [`WatchedFiles::check`] retries each path without an open file, and logs a failure if its reason
//! is new.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glebe::reclaim::Reclaimer;

use super::open::{Id, Judge, Open};

/// Maximum number of `before` files per path. Limits descriptors if the file is replaced often.
const BEFORE_MAX: usize = 8;

pub struct WatchedFiles(Vec<Named>);

struct Named {
    path: PathBuf,
    now: Option<Open>,
    before: Vec<Open>,
    why_not: Option<String>,
}

impl WatchedFiles {
    pub fn new(paths: &[PathBuf]) -> Self {
        let named = |path: &PathBuf| Named {
            path: path.clone(),
            now: None,
            before: Vec::new(),
            why_not: None,
        };
        Self(paths.iter().map(named).collect())
    }

    pub fn open(&mut self, reclaimer: &Reclaimer) -> Result<(), String> {
        for at in 0..self.0.len() {
            let (before, [named, ..]) = self.0.split_at_mut(at) else { break };
            let path = named.path.display();
            let id = id_of(&named.path).ok();
            if let Some(other) = before.iter().find(|other| other.is(id)) {
                return Err(format!("{} and {path} are one file", other.path.display()));
            }
            let open = Open::new(&named.path, reclaimer);
            named.now = Some(open.map_err(|why| format!("{path}: {why}"))?);
        }
        Ok(())
    }

    pub fn check(&mut self, judge: Judge<'_>) {
        self.0.iter_mut().for_each(|named| named.check(judge));
    }

    /// Makes the next check open every current file anew. Keeps earlier files.
    pub fn close(&mut self) {
        for named in &mut self.0 {
            (named.now, named.why_not) = (None, None);
        }
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut Open> {
        self.0.iter_mut().flat_map(|named| named.now.iter_mut().chain(&mut named.before))
    }
}

impl Named {
    fn is(&self, id: Option<Id>) -> bool {
        self.now.as_ref().is_some_and(|open| Some(open.id()) == id)
    }

    fn check(&mut self, judge: Judge<'_>) {
        let (path, log) = (self.path.display().to_string(), judge.log);
        let found = id_of(&self.path);
        if self.now.is_some() && !self.is(found.as_ref().ok().copied()) {
            match &found {
                Ok(_) => log.tell(format!("{path}: was replaced by another file")),
                Err(why) => {
                    log.tell(format!("{path}: is gone"));
                    self.why_not = Some(why.to_string());
                }
            }
            self.before.extend(self.now.take().map(Open::outlive));
            if self.before.len() > BEFORE_MAX {
                self.before.remove(0);
                log.warn(format!("{path}: was replaced too often: its oldest file is left alone"));
            }
        }
        if self.now.is_none() {
            self.open(found, judge);
        }
        if let Some(Err(why)) = self.now.as_mut().map(|open| open.look(judge)) {
            log.warn(format!("{path}: {why}"));
            self.now = None;
            self.why_not = Some(why.to_string());
        }
        self.before.retain_mut(|open| match open.look(judge) {
            Ok(is_used) => is_used,
            Err(why) => {
                log.warn(format!("the file that was {path}: {why}"));
                false
            }
        });
    }

    /// Opens the file. Logs a failure if its reason is new.
    fn open(&mut self, found: io::Result<Id>, judge: Judge<'_>) {
        let found = found.map_err(|why| why.to_string());
        match found.and_then(|_| Open::new(&self.path, judge.reclaimer)) {
            Ok(open) => {
                self.why_not = None;
                self.now = Some(open);
            }
            Err(why) if self.why_not.as_ref() == Some(&why) => {}
            Err(why) => {
                judge.log.warn(format!("{}: {why}", self.path.display()));
                self.why_not = Some(why);
            }
        }
    }
}

/// Returns the identity of the file at `path`. Follows symbolic links only below `/proc`
/// (`/proc/PID/fd/N`).
fn id_of(path: &Path) -> io::Result<Id> {
    let mut meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() && path.starts_with("/proc") {
        meta = fs::metadata(path)?;
    }
    Ok((meta.dev(), meta.ino()))
}
