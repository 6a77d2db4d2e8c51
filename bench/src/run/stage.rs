//! [`Stage`]: what programs need to start: copies of glebe that every user can reach, and a user
//! who is not root, because PostgreSQL refuses to run as root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use glebe_testing::Scratch;

use super::lending::Lending;
use super::origin::Origin;
use crate::Outcome;

const LIBRARY: &str = "libglebe_huge.so";
/// User and group of `nobody`.
const NOBODY: (u32, u32) = (65_534, 65_534);

pub(super) struct Stage {
    scratch: Scratch,
    pub(super) glebe: PathBuf,
    /// The number of a user and of a group.
    pub(super) user: (u32, u32),
}

impl Stage {
    /// Fails if the machine or the build lacks what all programs need.
    pub(super) fn new() -> Outcome<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err("pools and PostgreSQL's user need root".into());
        }
        if !glebe_testing::tools::has("setpriv") {
            return Err("no setpriv: util-linux".into());
        }
        let program = std::env::current_exe()?;
        let scratch = Scratch::readable("bench-run");
        for name in ["glebe", LIBRARY] {
            let from = program.with_file_name(name);
            if !from.exists() {
                return Err(format!("no {name} beside {}", program.display()).into());
            }
            fs::copy(from, scratch.path().join(name))?;
        }
        let glebe = scratch.path().join("glebe");
        let user = user_of(&fs::read_to_string("/etc/passwd").unwrap_or_default());
        Ok(Self { scratch, glebe, user })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a folder that the other user owns.
    pub(super) fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.path(name);
        fs::create_dir(&path)?;
        chown(&path, Some(self.user.0), Some(self.user.1))?;
        Ok(path)
    }

    /// Returns a command that the kernel ends by `signal` if the benchmark ends first.
    pub(super) fn command(&self, signal: &str, is_root: bool) -> Command {
        let mut command = Command::new("setpriv");
        command.current_dir(self.scratch.path()).arg(format!("--pdeathsig={signal}"));
        if !is_root {
            let (user, group) = self.user;
            command.args([format!("--reuid={user}"), format!("--regid={group}")]);
            command.arg("--clear-groups");
        }
        command
    }

    /// Adds the words that start `program` with pages of `origin`.
    pub(super) fn start(
        &self,
        command: &mut Command,
        origin: Origin,
        lending: &Lending,
        program: &Path,
    ) {
        if origin == Origin::Glebe {
            command.env("GLEBE_LEASES", &lending.socket);
            command.arg(&self.glebe).args(["run", "--contig", "--required", "--"]);
        }
        command.arg(program);
    }
}

/// Returns the user `postgres`, if there is one, else `nobody`.
fn user_of(passwd: &str) -> (u32, u32) {
    let line = passwd.lines().find_map(|line| line.strip_prefix("postgres:"));
    let mut numbers = line.into_iter().flat_map(|line| line.split(':').skip(1));
    match [numbers.next(), numbers.next()].map(|number| number.and_then(|n| n.parse().ok())) {
        [Some(user), Some(group)] => (user, group),
        _ => NOBODY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_has_its_own_user_or_nobody() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/bash\n";
        assert_eq!(user_of(passwd), (101, 104));
        assert_eq!(user_of("root:x:0:0::/root:/bin/sh\n"), NOBODY);
        assert_eq!(user_of("postgres:x:many:104:,,,:/var:/bin/bash\n"), NOBODY);
    }
}
