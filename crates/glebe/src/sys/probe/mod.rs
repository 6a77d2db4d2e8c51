//! [`Support`]: every kernel mechanism that glebe uses, as this process finds it here and now.
//!
//! Each row comes from an attempt or from the file that decides, never from the kernel's version:
//! versions say what a kernel could do, containers and seccomp say what it does. An attempt
//! leaves nothing behind: no descriptor, no mapping, no registration, no number changed.
//! A row that is not a plain yes says why and what would turn it on. Values that other processes
//! change (free pages, usage) are as of the call; everything else is the same twice running.
//! Cost: some fifty small files and two dozen system calls. No lock.

mod attempts;
mod settings;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use super::file;

/// Whether a mechanism can be used by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It can be used.
    Yes,
    /// It can be used within the limits that the row's reason names.
    Partly,
    /// It cannot be used.
    No,
}

impl State {
    /// The word for it: `yes`, `partly`, `no`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A kernel mechanism as found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// Unique, dotted, stable between versions: `hugetlb.2048kB`, `uffd.sigbus`.
    pub key: String,
    /// What it is, in a few words.
    pub name: String,
    /// Whether it can be used.
    pub state: State,
    /// The value found; may be empty.
    pub detail: String,
    /// Why it is not (wholly) there; empty where `state` is [`State::Yes`].
    pub reason: String,
    /// The command, option or privilege that would turn it on; empty where `state` is
    /// [`State::Yes`].
    pub remedy: String,
}

impl Mechanism {
    fn yes(key: impl Into<String>, name: impl Into<String>, detail: impl Into<String>) -> Self {
        let (key, name, detail) = (key.into(), name.into(), detail.into());
        let (reason, remedy) = (String::new(), String::new());
        Self { key, name, state: State::Yes, detail, reason, remedy }
    }

    /// The same row in a lesser state, and why.
    fn but(self, state: State, reason: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self { state, reason: reason.to_string(), remedy: remedy.into(), ..self }
    }

    /// The same row, which is not there.
    fn not(self, reason: impl fmt::Display, remedy: impl Into<String>) -> Self {
        self.but(State::No, reason, remedy)
    }
}

/// What this machine and this process's privileges give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    release: String,
    mechanisms: Vec<Mechanism>,
}

impl Support {
    /// Probes the machine.
    ///
    /// ```
    /// let support = glebe::probe::Support::probe();
    /// if !support.has("uffd.sigbus") {
    ///     let row = support.get("uffd.sigbus").expect("always listed");
    ///     println!("no SIGBUS on lost pages: {}; {}", row.reason, row.remedy);
    /// }
    /// ```
    #[must_use]
    pub fn probe() -> Self {
        Self::probe_below(Path::new("/"))
    }

    /// Probes with the files below `root`. System calls still ask this machine.
    fn probe_below(root: &Path) -> Self {
        let mut mechanisms = settings::rows(root);
        mechanisms.extend(attempts::rows(root));
        let release = file::text(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        Self { release: release.trim().to_owned(), mechanisms }
    }

    /// The kernel's release, empty where it cannot be read.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// All rows in the order of printing; keys are unique.
    #[must_use]
    pub fn mechanisms(&self) -> &[Mechanism] {
        &self.mechanisms
    }

    /// The row of that key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Mechanism> {
        self.mechanisms.iter().find(|row| row.key == key)
    }

    /// Whether the row of that key is there and says yes.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|row| row.state == State::Yes)
    }
}
