//! [`Background`]: work that the machine does while requests are timed, and whose own time is
//! measured: by default a parallel build of real sources, or any shell command.
//!
//! The build is that of this project's own sources, from nothing, without optimisation, by as many
//! jobs as there are processors, offline: what it needs was fetched when this program was built. It
//! writes below a directory of its own, removed when the background is dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{kill_process_group, Pid, Signal};
use tempfile::TempDir;

use crate::interrupt::Stop;
use crate::report::Options;
use crate::Outcome;

/// What of the project is built: one or two CPU seconds in a quick run, else some ten.
const PACKAGES: [&str; 2] = ["libc", "glebe-bench"];

/// The folder that a build writes to, in a directory of this run's own.
const BUILT: &str = "target";

/// Work that can be started again and again, one at a time.
#[derive(Debug)]
pub(super) struct Background {
    work: Work,
    /// In words.
    pub(super) what: String,
}

#[derive(Debug)]
enum Work {
    /// A build of `package`; what the last run left is removed first.
    Build { package: &'static str, target: TempDir },
    /// A command, in `dir`, where its temporary files go too.
    Shell { text: String, dir: PathBuf },
}

impl Background {
    /// The command that was asked for, or the build, with its files where scratch files go. The
    /// build is run once to the end, so that it is known to work and its sources are in memory; an
    /// error says why it cannot be had, with the remedy.
    pub(super) fn new(options: &Options) -> Outcome<Self> {
        let dir = options.scratch();
        if let Some(text) = options.background.clone() {
            let what = format!("`{text}`");
            return Ok(Self { work: Work::Shell { text, dir }, what });
        }
        let refused = |why: String| {
            format!("no build of the project's own sources ({why}); give --background CMD")
        };
        let package = PACKAGES[usize::from(!options.quick)];
        let target = tempfile::Builder::new().prefix("glebe-background-").tempdir_in(dir)?;
        let what = format!("a build of {package} and all it uses, from nothing");
        let build = Self { work: Work::Build { package, target }, what };
        let output = build.command().stderr(Stdio::piped()).output();
        let output = output.map_err(|e| refused(format!("cargo: {e}")))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(refused(text.lines().last().unwrap_or("it said nothing").into()).into());
        }
        Ok(build)
    }

    /// Starts a run.
    pub(super) fn start(&self) -> Outcome<Running> {
        self.empty()?;
        Ok(Running(self.command().spawn().map_err(|e| format!("{}: {e}", self.what))?))
    }

    /// Runs it again and again while `work` runs.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> Outcome<T> {
        // The first one here, so that what cannot be started is an error.
        let mut running = self.start()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Also a pause between starts of a command that ends at once.
                    std::thread::sleep(Duration::from_millis(10));
                    if !matches!(running.ended(), Ok(None)) {
                        let Ok(next) = self.start() else { return };
                        running = next;
                    }
                }
                drop(running);
            });
            Ok(work())
        })
    }

    /// Removes what was built. A compiler that was killed may still be ending, and make a last
    /// file meanwhile.
    fn empty(&self) -> Outcome {
        const TRIES: u32 = 50;
        let Work::Build { target, .. } = &self.work else { return Ok(()) };
        for nth in 1.. {
            match fs::remove_dir_all(target.path().join(BUILT)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(e) if nth == TRIES => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
                Ok(()) => break,
            }
        }
        Ok(())
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
                cargo.arg("--target-dir").arg(target.path().join(BUILT)).current_dir(sources());
                // Each run compiles everything, here.
                cargo.env("CARGO_INCREMENTAL", "0");
                for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_JOBS"] {
                    cargo.env_remove(name);
                }
                cargo
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
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

/// A run, which leads a process group; killed with all that it started when this is dropped.
#[derive(Debug)]
pub(super) struct Running(Child);

impl Running {
    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only then the number is still its own.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// CPU seconds of the commands that this process has waited for, and of all that they did.
pub(super) fn of_children() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // The name, which may hold anything, ends in the last bracket; the state follows.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = fields.skip(13).take(2).map_while(|n| n.parse().ok()).collect();
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Where the project's sources were when this was compiled.
fn sources() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(mut running: Running) -> ExitStatus {
        loop {
            match running.ended().unwrap() {
                Some(status) => return status,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn a_build_begins_from_nothing_each_time_and_leaves_nothing() {
        let build = match Background::new(&Options { quick: true, ..Options::default() }) {
            Ok(build) => build,
            Err(why) => return println!("skipped: {why}"),
        };
        let Work::Build { target, .. } = &build.work else { unreachable!("no command was given") };
        let target = target.path().to_path_buf();
        let stale = target.join(BUILT).join("stale");
        fs::write(&stale, "").unwrap();
        assert!(wait(build.start().unwrap()).success());
        assert!(!stale.exists() && target.join(BUILT).is_dir());
        drop(build);
        assert!(!target.exists());
    }

    #[test]
    fn a_command_is_run_by_the_shell_and_counted_with_its_children() {
        let turns = "(i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done); exit 3";
        let options = Options { background: Some(turns.into()), ..Options::default() };
        let before = of_children().unwrap();
        assert_eq!(wait(Background::new(&options).unwrap().start().unwrap()).code(), Some(3));
        assert!(of_children().unwrap() > before + 0.01);
    }
}
