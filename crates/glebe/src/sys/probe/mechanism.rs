//! One row of the probe: a mechanism, whether it is here, and what to do where it is not.

use std::fmt;

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
    pub(super) fn yes(
        key: impl Into<String>,
        name: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            key: key.into(),
            name: name.into(),
            state: State::Yes,
            detail: detail.into(),
            reason: String::new(),
            remedy: String::new(),
        }
    }

    pub(super) fn no(
        key: impl Into<String>,
        name: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::yes(key, name, "").lacking(State::No, reason, remedy)
    }

    /// The same row in a lesser state, and why.
    pub(super) fn lacking(
        self,
        state: State,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state, reason: reason.into(), remedy: remedy.into(), ..self }
    }

    /// The same row with its value.
    pub(super) fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }
}
