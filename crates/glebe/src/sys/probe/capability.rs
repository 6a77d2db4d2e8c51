//! Capabilities in effect, by name where one turns a mechanism on. Source: capabilities(7).

use super::mechanism::{Mechanism, State};
use super::roots::{text, Roots};

/// Bit, name and what it opens to glebe.
const WANTED: [(u32, &str, &str); 6] = [
    (1, "CAP_DAC_OVERRIDE", "pools and cgroups"),
    (14, "CAP_IPC_LOCK", "mlock without limit"),
    (19, "CAP_SYS_PTRACE", "userfaultfd of kernel faults"),
    (21, "CAP_SYS_ADMIN", "page frame numbers"),
    (23, "CAP_SYS_NICE", "memory of other processes"),
    (24, "CAP_SYS_RESOURCE", "short pressure windows"),
];

const IPC_LOCK: u32 = 14;

/// The effective set, by bit; `None` where it cannot be read.
#[derive(Clone, Copy)]
pub(super) struct Effective(Option<u64>);

impl Effective {
    pub(super) fn read(roots: &Roots) -> Self {
        let status = text(&roots.proc.join("self/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()))
    }

    fn has(self, bit: u32) -> bool {
        self.0.is_some_and(|mask| mask >> bit & 1 == 1)
    }

    pub(super) fn ipc_lock(self) -> bool {
        self.has(IPC_LOCK)
    }

    pub(super) fn row(self) -> Mechanism {
        const KEY: &str = "capabilities";
        const NAME: &str = "effective capabilities";
        if self.0.is_none() {
            return Mechanism::no(
                KEY,
                NAME,
                "CapEff cannot be read from /proc/self/status",
                "mount /proc: mount -t proc proc /proc",
            );
        }
        let list = |held: bool| -> Vec<String> {
            let named = WANTED.iter().filter(|(bit, ..)| self.has(*bit) == held);
            named.map(|(_, name, opens)| format!("{name} ({opens})")).collect()
        };
        let (held, missing) = (list(true), list(false));
        let row = Mechanism::yes(KEY, NAME, held.join(", "));
        if missing.is_empty() {
            return row;
        }
        let state = if held.is_empty() { State::No } else { State::Partly };
        let set: Vec<String> = WANTED
            .iter()
            .filter(|(bit, ..)| !self.has(*bit))
            .map(|(_, name, _)| format!("{}+ep", name.to_lowercase()))
            .collect();
        let remedy = format!(
            "as root: setcap '{}' PROGRAM (or docker --cap-add, systemd AmbientCapabilities=)",
            set.join(" ")
        );
        row.lacking(state, format!("not held: {}", missing.join(", ")), remedy)
    }
}
