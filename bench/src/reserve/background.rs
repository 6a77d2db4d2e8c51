//! [`Background`]: work that the machine does while requests are timed, and whose own time is
//! measured: by default a parallel build of real sources, or any shell command.
//!
//! The build is that of this project's own sources, from nothing, without optimisation, by as many
//! jobs as there are processors, offline: what it needs was fetched when this program was built. It
//! writes below a directory of its own, removed when the background is dropped.
//!
//! Unit: a run, from a start with nothing built to its end.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glebe::error::OsError;
use tempfile::TempDir;

/// What of the project is built: some ten CPU seconds.
const PACKAGE: &str = "glebe-bench";
/// One or two.
const PACKAGE_QUICK: &str = "libc";

/// Work that can be started again and again.
#[derive(Debug)]
pub(super) struct Background {
    work: Work,
    what: String,
}

#[derive(Debug)]
enum Work {
    /// A build of `package` into a directory that each run empties first.
    Build { package: &'static str, target: TempDir },
    /// A command, in `dir`, where its temporary files go too.
    Shell { text: String, dir: PathBuf },
}

impl Background {
    /// `command`, or the build, with its files in `dir` or the system's place for them; run once
    /// to the end if it is the build, so that it is known to work and its sources are in memory.
    /// The error says why the build cannot be had, with the remedy.
    pub(super) fn new(
        command: Option<&str>,
        dir: Option<&Path>,
        quick: bool,
    ) -> Result<Self, String> {
        let dir = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        if let Some(text) = command {
            let work = Work::Shell { text: text.into(), dir };
            return Ok(Self { work, what: format!("`{text}`") });
        }
        let refused = |why: String| {
            format!("no build of the project's own sources ({why}); give --background CMD")
        };
        let package = if quick { PACKAGE_QUICK } else { PACKAGE };
        let target = tempfile::Builder::new().prefix("glebe-background-").tempdir_in(dir);
        let target = target.map_err(|e| refused(e.to_string()))?;
        let what = format!("a build of {package} and all it uses, from nothing");
        let build = Self { work: Work::Build { package, target }, what };
        match build.command().stderr(Stdio::piped()).output() {
            Ok(output) if output.status.success() => Ok(build),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                Err(refused(text.lines().last().unwrap_or("it said nothing").to_owned()))
            }
            Err(e) => Err(refused(format!("cargo: {e}"))),
        }
    }

    /// In words.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Starts a run, at the head of a process group of its own. One at a time.
    pub(super) fn spawn(&self) -> Result<Child, OsError> {
        self.empty().map_err(|e| OsError::new("unlink", self.what.clone(), e))?;
        self.command().spawn().map_err(|e| OsError::new("spawn", self.what.clone(), e))
    }

    /// Removes what was built. A compiler that was killed may still be ending, and make a last
    /// file meanwhile.
    fn empty(&self) -> io::Result<()> {
        const TRIES: u32 = 50;
        let Work::Build { target, .. } = &self.work else { return Ok(()) };
        for _ in 0..TRIES {
            let removed = fs::read_dir(target)?.try_for_each(|entry| {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                }
            });
            match removed {
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
        Err(io::ErrorKind::DirectoryNotEmpty.into())
    }

    fn command(&self) -> Command {
        let mut command = match &self.work {
            Work::Shell { text, dir } => {
                let mut shell = Command::new("sh");
                shell.args(["-c", text]).current_dir(dir).env("TMPDIR", dir);
                shell
            }
            Work::Build { package, target } => {
                let mut cargo = Command::new("cargo");
                cargo.args(["build", "--quiet", "--offline", "--locked", "--package", package]);
                cargo.args(["--config", "profile.dev.opt-level=0"]);
                cargo.args(["--config", "profile.dev.debug=0"]);
                cargo.arg("--target-dir").arg(target.path()).current_dir(sources());
                // Each run compiles everything, here.
                cargo.env("CARGO_INCREMENTAL", "0");
                for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_JOBS"] {
                    cargo.env_remove(name);
                }
                cargo
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0);
        command
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Err(e) = self.empty() {
            eprintln!("glebe-bench: {} leaves files: {e}", self.what);
        }
    }
}

/// Where the project's sources were when this was compiled.
fn sources() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_begins_from_nothing_each_time_and_leaves_nothing() {
        let build = match Background::new(None, None, true) {
            Ok(build) => build,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        let Work::Build { target, .. } = &build.work else { unreachable!("no command was given") };
        let target = target.path().to_path_buf();
        let stale = target.join("stale");
        fs::write(&stale, "").unwrap();
        assert!(build.spawn().unwrap().wait().unwrap().success());
        assert!(!stale.exists() && target.is_dir());
        drop(build);
        assert!(!target.exists());
    }

    #[test]
    fn a_command_is_run_by_the_shell() {
        let command = Background::new(Some("exit 3"), None, false).unwrap();
        assert_eq!(command.spawn().unwrap().wait().unwrap().code(), Some(3));
        assert_eq!(command.what(), "`exit 3`");
    }
}
