//! [`Support`]: every kernel mechanism that glebe can use, as this process finds it here and now.
//!
//! Each row comes from an attempt or from the file that decides, never from the kernel's version:
//! versions say what a kernel could do, containers and seccomp say what it does. An attempt
//! leaves nothing behind: no descriptor, no mapping, no registration, no number changed.
//! A row that is not a plain yes says why and what would turn it on. Values that other processes
//! change (free pages, usage) are as of the call; everything else is the same twice running.
//! Cost: about a hundred small files and a dozen system calls. No lock.

mod call;
mod capability;
mod device;
mod group;
mod machine;
mod mechanism;
mod pin;
mod pools;
mod pressure;
mod residency;
mod restart;
mod roots;
mod thp;
mod userfault;

#[cfg(test)]
mod tests;

pub use mechanism::{Mechanism, State};
pub use roots::Roots;

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
    /// let support = glebe::sys::probe::Support::probe();
    /// if !support.has("uffd.sigbus") {
    ///     let row = support.get("uffd.sigbus").expect("always listed");
    ///     println!("no SIGBUS on lost pages: {}; {}", row.reason, row.remedy);
    /// }
    /// ```
    #[must_use]
    pub fn probe() -> Self {
        Self::probe_in(&Roots::default())
    }

    /// Probes with `/proc`, `/sys` and `/dev` elsewhere. System calls still ask this machine.
    #[must_use]
    pub fn probe_in(roots: &Roots) -> Self {
        let effective = capability::Effective::read(roots);
        let mut rows = Vec::new();
        pools::rows(roots, &mut rows);
        thp::rows(roots, &mut rows);
        residency::rows(roots, &mut rows);
        userfault::rows(roots, &mut rows);
        restart::rows(&mut rows);
        pressure::rows(roots, &mut rows);
        group::rows(roots, &mut rows);
        device::rows(roots, &mut rows);
        pin::rows(roots, effective, &mut rows);
        machine::rows(roots, &mut rows);
        rows.push(effective.row());
        let release = roots.sysctl("kernel/osrelease").unwrap_or_default();
        Self { release, mechanisms: rows }
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
