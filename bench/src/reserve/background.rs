//! [`Background`]: a shell command that loads the machine beside timed requests, and is timed
//! itself. The default is a parallel build.
//!
//! The build compiles a package and its dependencies from nothing, unoptimised, with a job per
//! processor. It needs no network, because building this program fetched all sources.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{kill_process_group, Pid, Signal};
use tempfile::TempDir;

use crate::pressure::patiently;
use crate::report::Options;
use crate::Outcome;

/// Packages built in a quick run (one or two CPU seconds) and in a full run (about ten).
const PACKAGES: [&str; 2] = ["libc", "glebe-bench"];

/// Repeats `rm`, because a killed compiler may write a last file.
const BUILD: &str = r#"
until rm -rf "$TMPDIR/target" || ! kill -0 $PPID; do sleep 0.1; done
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_JOBS
CARGO_INCREMENTAL=0 exec cargo build --quiet --offline --locked --package PACKAGE \
    --config profile.dev.opt-level=0 --config profile.dev.debug=0 --target-dir "$TMPDIR/target"
"#;

pub(super) struct Background {
    text: String,
    dir: PathBuf,
    scratch: PathBuf,
    own: Option<TempDir>,
    pub(super) what: String,
}

impl Background {
    /// Uses the given command, or the build. Runs the build once, to show that it works and to load
    /// its sources into memory. If the build fails, the error names a remedy.
    pub(super) fn new(options: &Options) -> Outcome<Self> {
        let dir = options.scratch();
        if let Some(text) = options.background.clone() {
            let what = format!("`{text}`");
            return Ok(Self { text, scratch: dir.clone(), dir, own: None, what });
        }
        let refused = |why: String| {
            format!("no build of the project's own sources ({why}); give --background CMD")
        };
        let package = PACKAGES[usize::from(!options.quick)];
        let own = tempfile::Builder::new().prefix("glebe-background-").tempdir_in(dir)?;
        let build = Self {
            text: BUILD.replace("PACKAGE", package),
            dir: Path::new(env!("CARGO_MANIFEST_DIR")).into(),
            scratch: own.path().into(),
            own: Some(own),
            what: format!("a build of {package} and all it uses, from nothing"),
        };
        let output = build.command(&build.text).stderr(Stdio::piped()).output();
        let output = output.map_err(|e| refused(format!("sh: {e}")))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(refused(text.lines().last().unwrap_or("it said nothing").into()).into());
        }
        Ok(build)
    }

    pub(super) fn start(&self) -> Outcome<Running> {
        Ok(Running(self.command(&self.text).spawn().map_err(|e| format!("{}: {e}", self.what))?))
    }

    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> Outcome<T> {
        // The loop ends with this process. It sleeps, because a command may end at once.
        let text = format!("while kill -0 $PPID; do ({}\n); sleep 0.01; done", self.text);
        let _running = Running(self.command(&text).spawn()?);
        Ok(work())
    }

    fn command(&self, text: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", text]).current_dir(&self.dir).env("TMPDIR", &self.scratch);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        let removed = patiently(|| match fs::remove_dir_all(own.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        });
        if let Err(e) = removed {
            eprintln!("glebe-bench: {} leaves files: {e}", self.what);
        }
    }
}

/// A command that leads a process group. Dropping it kills the group, unless the command has ended.
pub(super) struct Running(Child);

impl Running {
    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No other process gets the id before this process has waited for the command.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// Returns the CPU seconds of all commands waited for, and of their children.
pub(super) fn of_children() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // The program's name ends at the last bracket.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = fields.skip(13).take(2).map_while(|n| n.parse().ok()).collect();
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_begins_from_nothing_each_time_and_leaves_nothing() {
        let Some(build) =
            crate::had(Background::new(&Options { quick: true, ..Options::default() }))
        else {
            return;
        };
        let own = build.scratch.clone();
        let stale = own.join("target/stale");
        fs::write(&stale, "").unwrap();
        assert!(build.start().unwrap().0.wait().unwrap().success());
        assert!(!stale.exists() && own.join("target").is_dir());
        drop(build);
        assert!(!own.exists());
    }

    #[test]
    fn a_command_is_run_by_the_shell_and_counted_with_its_children() {
        let turns = "(i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done); exit 3";
        let options = Options { background: Some(turns.into()), ..Options::default() };
        let before = of_children().unwrap();
        let status = Background::new(&options).unwrap().start().unwrap().0.wait().unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(of_children().unwrap() > before + 0.01);
    }
}
