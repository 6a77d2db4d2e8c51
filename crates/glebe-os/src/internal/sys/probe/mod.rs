//! [`Support`] lists every kernel mechanism that glebe uses, as this process finds it now.
//!
//! Each [`Mechanism`] comes from an attempt or from a kernel file, never from the kernel's version,
//! because containers and seccomp decide too. An attempt leaves no descriptor, mapping,
//! registration or changed setting.

mod attempts;
mod settings;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use crate::internal::sys::files::file;

/// Whether this process can use a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Usable.
    Yes,
    /// Usable within the limits that `reason` names.
    Partly,
    /// Not usable.
    No,
}

impl State {
    /// Returns `yes`, `partly` or `no`.
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
    /// The mechanism in a few words.
    pub name: String,
    /// Usability by this process.
    pub state: State,
    /// The value found; may be empty.
    pub detail: String,
    /// Reason for a limit or refusal; empty for [`State::Yes`].
    pub reason: String,
    /// Command, option or privilege that helps; empty for [`State::Yes`].
    pub remedy: String,
}

impl Mechanism {
    fn yes(key: impl Into<String>, name: impl Into<String>, detail: impl Into<String>) -> Self {
        let (key, name, detail) = (key.into(), name.into(), detail.into());
        let (reason, remedy) = (String::new(), String::new());
        Self { key, name, state: State::Yes, detail, reason, remedy }
    }

    fn but(self, state: State, reason: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self { state, reason: reason.to_string(), remedy: remedy.into(), ..self }
    }

    fn not(self, reason: impl fmt::Display, remedy: impl Into<String>) -> Self {
        self.but(State::No, reason, remedy)
    }
}

/// The mechanisms of this machine, as far as this process's privileges allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    release: String,
    mechanisms: Vec<Mechanism>,
}

impl Support {
    /// Probes the machine.
    ///
    /// ```
    /// let support = glebe_os::probe::Support::probe();
    /// if !support.has("uffd.sigbus") {
    ///     let row = support.get("uffd.sigbus").expect("always listed");
    ///     println!("no SIGBUS on lost pages: {}; {}", row.reason, row.remedy);
    /// }
    /// ```
    #[must_use]
    pub fn probe() -> Self {
        Self::probe_below(Path::new("/"))
    }

    /// Probes files below `root`, but system calls still go to this machine.
    fn probe_below(root: &Path) -> Self {
        let mut mechanisms = settings::rows(root);
        mechanisms.extend(attempts::rows(root));
        let release = file::text(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        Self { release: release.trim().to_owned(), mechanisms }
    }

    /// Returns the kernel's release; empty if it cannot be read.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Returns all rows in printing order; keys are unique.
    #[must_use]
    pub fn mechanisms(&self) -> &[Mechanism] {
        &self.mechanisms
    }

    /// Returns the row with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Mechanism> {
        self.mechanisms.iter().find(|row| row.key == key)
    }

    /// Returns true if the row with this key says yes.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|row| row.state == State::Yes)
    }
}
