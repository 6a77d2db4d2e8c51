//! [`Ran`] measures time and memory of a program with its children, under a peer's allocator.
//!
//! A child of the benchmark starts the program, so that getrusage(2) of ended children counts
//! nothing else. The peak is that of the largest process. A forked process inherits its parent's
//! peak, so the child must be small. The program dies with the child. Units: seconds, bytes.
//! Source: getrusage(2), prctl(2).
//!
//! # Safety
//! `getrusage` writes the one structure that it is given. Between fork and exec the child makes one
//! system call.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use glebe::units::Bytes;
use rustix::process::{set_parent_process_death_signal, Signal};
use serde::{Deserialize, Serialize};

use super::peer::Peer;
use crate::child::Child;
use crate::memory::Way;
use crate::report::Report;
use crate::{clock, Outcome};

pub(super) const CPU: &str = "s cpu";
pub(super) const WALL: &str = "s";
pub(super) const PEAK: &str = "MiB peak";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ran {
    pub(super) cpu_s: f64,
    pub(super) wall_s: f64,
    pub(super) peak: u64,
    pub(super) said: String,
}

impl Ran {
    /// Runs `command` to its end, with `input` or nothing as standard input, after touching `warm`
    /// bytes. Fails if the command fails.
    pub(super) fn with(
        peer: &Peer,
        mut command: Command,
        input: Option<&Path>,
        warm: Bytes,
    ) -> Outcome<Self> {
        // A virtual machine's host may have taken free huge pages. Getting the pages back during
        // the run would lengthen the run by a tenth.
        drop(Way::Thp.obtain(warm));
        peer.set(&mut command);
        let task = Task { input: input.map(Path::to_owned), ..Task::of(&command) };
        let task = serde_json::to_string(&task)?;
        let answer = Child::start("malloc-program", &[&task])?.answer()?;
        let answer = answer.ok_or_else(|| format!("{command:?}: killed without a limit"))?;
        match serde_json::from_str(&answer)? {
            Ok(ran) => Ok(ran),
            Err::<_, String>(why) => Err(format!("with {}: {why}", peer.who).into()),
        }
    }

    pub(super) fn add(&self, case: &str, who: &str, report: &mut Report) {
        report.add(case, who, CPU, self.cpu_s);
        report.add(case, who, WALL, self.wall_s);
        report.add(case, who, PEAK, self.peak as f64 / f64::from(1 << 20));
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    words: Vec<OsString>,
    /// Variables to set, or to remove if `None`.
    env: Vec<(OsString, Option<OsString>)>,
    dir: Option<PathBuf>,
    input: Option<PathBuf>,
}

impl Task {
    fn of(command: &Command) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let env = command.get_envs().map(|(name, value)| (name.into(), value.map(OsStr::to_owned)));
        Self {
            words: words.map(OsStr::to_owned).collect(),
            env: env.collect(),
            dir: command.get_current_dir().map(PathBuf::from),
            input: None,
        }
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(&self.words[0]);
        let input = self.input.as_ref().map(File::open).transpose()?;
        command.args(&self.words[1..]).stdin(input.map_or_else(Stdio::null, Stdio::from));
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        // SAFETY: prctl(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        Ok(command)
    }

    /// Runs the command to its end. The figures are of all ended children of this process.
    fn run(&self) -> Result<Ran, String> {
        let begin = clock::wall();
        let output = self.command().and_then(|mut command| command.output());
        let wall_s = (clock::wall() - begin).as_secs_f64();
        let name = self.words[0].to_string_lossy();
        let output = output.map_err(|why| format!("{name}: {why}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name}: {}: {}", output.status, said.trim_end()));
        }
        let (cpu_s, peak) = of_children().map_err(|why| why.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Ran { cpu_s, wall_s, peak, said })
    }
}

pub(crate) fn start(task: &str, out: &mut dyn Write) -> Outcome {
    let ran = serde_json::from_str::<Task>(task)?.run();
    Ok(writeln!(out, "{}", serde_json::to_string(&ran)?)?)
}

/// Returns the CPU seconds of all ended descendants, and the peak bytes of the largest.
fn of_children() -> Outcome<(f64, u64)> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure has the type that the call writes.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(format!("getrusage: {}", io::Error::last_os_error()).into());
    }
    // SAFETY: all zeros or what the call wrote are valid numbers.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok((seconds(usage.ru_utime) + seconds(usage.ru_stime), (usage.ru_maxrss as u64) << 10))
}

pub(super) fn write(dir: &Path, name: &str, text: &str) -> Outcome<PathBuf> {
    let path = dir.join(name);
    let written = File::create(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| format!("write({}): {e}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Ran, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "said").env_remove("HOME").current_dir("/tmp");
        let input = Some(PathBuf::from("/proc/self/cmdline"));
        let task = Task { input, ..Task::of(&command) };
        let text = serde_json::to_string(&task).unwrap();
        serde_json::from_str::<Task>(&text).unwrap().run()
    }

    #[test]
    fn a_command_is_run_as_it_was_made_and_its_children_count() {
        let script = "(i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done); pwd; \
                      echo $WORD$HOME; [ $(wc -c) -gt 3 ]";
        let ran = shell(script).unwrap();
        assert_eq!(ran.said, "/tmp\nsaid\n");
        assert!(ran.cpu_s > 0.001 && ran.wall_s > 0.001 && ran.peak > 256 << 10, "{ran:?}");
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let why = shell("echo why >&2; exit 3").unwrap_err();
        assert!(why.contains("why") && why.contains('3'), "{why}");
        let command = Command::new("/nonexistent/program");
        let why = Task::of(&command).run().unwrap_err();
        assert!(why.contains("/nonexistent/program"), "{why}");
    }
}
