//! [`Served`] is a daemon in a process of its own.

use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use glebe_lease::Client;
use glebe_testing::process::child_of;

use super::running::{settings, Running};

pub struct Served {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    path: PathBuf,
}

/// Serves until the parent closes the standard input. Calls `then` before the parent is told.
pub fn serve(bricks: u64, then: impl FnOnce()) {
    serve_of(|| Running::new(bricks, settings(0)), then);
}

pub fn serve_of(start: impl FnOnce() -> Option<Running>, then: impl FnOnce()) {
    let Some(running) = start() else { return };
    then();
    println!("ready {}", running.path.display());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

impl Served {
    /// Starts `test` again, behind the words of `before`. Prints why this machine has no daemon.
    ///
    /// # Panics
    /// If the daemon ends for another reason than a lack of memory.
    pub fn start(test: &str, before: &[&str]) -> Option<Self> {
        if let Some((program, words)) = before.split_first() {
            let tried = Command::new(program).args(words).arg("true").output();
            if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
                println!("skipped: {before:?}: {tried:?}");
                return None;
            }
        }
        let own = child_of(test);
        let mut words = before.iter().map(AsRef::as_ref).chain([own.get_program()]);
        let mut command = Command::new(words.next()?);
        command.args(words).args(own.get_args());
        command.envs(own.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_answer = |line: &String| line.contains("ready ") || line.contains("skipped: ");
        let told = said.by_ref().map_while(Result::ok).find(is_answer).unwrap_or_default();
        match told.split_once("ready ") {
            Some((_, path)) => Some(Self { child, said, path: path.into() }),
            None => {
                let status = child.wait().unwrap();
                assert!(told.contains("skipped: "), "no daemon behind {before:?}: {status}");
                println!("{told}");
                None
            }
        }
    }

    pub fn client(&self) -> Client {
        Client::connect_to(&self.path, "outside").unwrap()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn ends_well(mut self) {
        drop(self.child.stdin.take());
        self.said.by_ref().map_while(Result::ok).for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}
