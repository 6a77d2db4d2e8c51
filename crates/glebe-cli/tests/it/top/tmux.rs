//! Tests `glebe top` in tmux, which shows the screen that a user sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use glebe::internal::sys::processes::process::effective_user;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{tools, Scratch};

use super::GLEBE;
use crate::serve::leases::lacks_memory;
use crate::serve::{patience, Serving};

const COLUMNS: &str =
    "    PID COMMAND       SIZE     BLOCKS     CACHES       FREE GIVEN/s HIT% TAKEN/s";
const KEYS: &str = "q quit  h help  s sort  / filter  Tab leases  up/down pick  p pause  m map";
/// Leases and panes that wait for the end of a test wait at most for this time.
const SECONDS: &str = "600";

/// A tmux server of the test, which shows one program.
struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    fn start(scratch: &Scratch, leases: &Path, program: &str) -> Self {
        let settings = scratch.path().join("tmux.conf");
        // A lone escape is a key at once, and the program has all rows.
        fs::write(&settings, "set -g status off\nset -s escape-time 0\n").expect("a file");
        let tmux = Self { socket: scratch.path().join("tmux") };
        let mut command = tmux.command(&["-u", "-f"]);
        command.arg(&settings).args(["new-session", "-d", "-x", "80", "-y", "24", program]);
        command.env("XDG_RUNTIME_DIR", scratch.path()).env("GLEBE_LEASES", leases);
        tools::run(command.env_remove("NO_COLOR"));
        tmux
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(args);
        command
    }

    fn press(&self, keys: &[&str]) {
        tools::run(self.command(&["send-keys"]).args(keys));
    }

    fn screen(&self, form: &[&str]) -> Vec<String> {
        let output = tools::run(self.command(&["capture-pane", "-p"]).args(form));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the first screen that is as wanted.
    fn until(&self, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let (begin, mut screen) = (std::time::Instant::now(), self.screen(&[]));
        while !is_wanted(&screen) {
            assert!(begin.elapsed() < patience(), "{}", screen.join("\n"));
            std::thread::sleep(std::time::Duration::from_millis(50));
            screen = self.screen(&[]);
        }
        screen
    }

    fn until_last_is(&self, line: &str) {
        self.until(|screen| screen.last().is_some_and(|last| last == line));
    }

    fn has_ended(&self) -> bool {
        let status = self.command(&["has-session"]).stderr(Stdio::null()).status();
        !status.expect("tmux").success()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).stderr(Stdio::null()).status();
    }
}

/// A process with a lease.
struct Tenant(Child);

impl Tenant {
    fn start(leases: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(GLEBE);
        command.args(["lease", "--socket"]).arg(leases).args(args).args(["--", "sleep", SECONDS]);
        Self(command.spawn().expect("the program starts"))
    }

    fn row(&self, size: &str, kind: &str, name: &str) -> String {
        format!("{size:>9} {:>8} {:>8}  {kind:<9}  {name}", effective_user(), self.0.id())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server of a cache and leases, or prints that this user has no huge pages.
fn server(scratch: &Scratch, leases: &Path) -> Option<Serving> {
    let (said, mut command) = (scratch.path().join("said"), Command::new(GLEBE));
    command.args(["serve", "--leases", "-m", "16", "--lease-zeroed", "4M", "-s"]);
    command.arg(scratch.path().join("cache")).arg("--lease-socket").arg(leases);
    command.env("XDG_RUNTIME_DIR", scratch.path());
    let server = Serving::start(command.stderr(fs::File::create(&said).expect("a file")), 3);
    if server.said[0].is_empty() {
        lacks_memory(&fs::read_to_string(said).expect("text"));
        return None;
    }
    Some(server)
}

#[test]
fn a_user_sees_and_moves_it_in_a_small_terminal() {
    if Command::new("tmux").arg("-V").output().is_err() {
        return println!("skipped: no tmux on this machine");
    }
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("tmux"));
    let leases = scratch.path().join("leases");
    let Some(mut server) = server(&scratch, &leases) else { return };
    let web = Tenant::start(&leases, &["--name", "web", "4M"]);
    let batch = Tenant::start(&leases, &["--name", "batch", "--revocable", "2M"]);
    let rows = [web.row("4 MiB", "lease", "web"), batch.row("2 MiB", "revocable", "batch")];
    let has = |screen: &[String], line: &str| screen.iter().any(|it| it == line);
    let tmux = Tmux::start(&scratch, &leases, &format!("exec {GLEBE} top --interval 0.2"));

    let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let begin = [server.pid().to_string(), "glebe".to_owned()];
    let is_bar = |line: &str| line.starts_with("[=") && line.len() == 80 && line.ends_with(']');
    // tmux may show a part of a drawing, so each wait is for all that one drawing has.
    let screen = tmux.until(|screen| {
        rows.iter().all(|row| has(screen, row))
            && (screen.len(), &*screen[0]) == (24, "glebe top, every 0.2 s; by size")
            && screen[23] == KEYS
            && (has(screen, COLUMNS) && screen[1].starts_with("memory "))
            && screen.iter().map(words).any(|words| words.starts_with(&begin))
            && screen.iter().any(|line| line.starts_with("= leases 6 MiB  # blocks "))
            && screen.iter().any(|line| is_bar(line))
    });
    assert!(screen.iter().all(|line| line.chars().count() <= 80), "{screen:#?}");

    tmux.press(&["s"]);
    tmux.until(|screen| screen[0] == "glebe top, every 0.2 s; by blocks");
    tmux.press(&["/", "W", "e", "b"]);
    tmux.until_last_is("filter: Web_   Enter keep, Esc show all");
    tmux.press(&["BSpace", "Enter"]);
    tmux.until(|screen| {
        screen.last().is_some_and(|last| last == KEYS)
            && screen[0] == "glebe top, every 0.2 s; by blocks; filter We"
            && (has(screen, &rows[0]) && !has(screen, &rows[1]))
            && has(screen, "No reserve matches the filter.")
    });
    tmux.press(&["Escape"]);
    tmux.until(|screen| has(screen, COLUMNS) && has(screen, &rows[1]));

    tmux.press(&["Tab", "Down"]);
    tmux.until_last_is(&KEYS.replace("Tab leases", "Tab reserves"));
    wait_until("the second lease in reverse", patience(), || {
        let screen = tmux.screen(&["-e"]);
        screen.iter().any(|line| line.contains(&format!("\x1b[7m{}", rows[1])))
    });
    tools::run(&mut tmux.command(&["resize-window", "-x", "40", "-y", "10"]));
    tmux.until(|screen| {
        (screen.len() == 10 && screen[0].starts_with("glebe top, "))
            && screen[9] == KEYS.replace("Tab leases", "Tab reserves")[..40]
            && rows.iter().all(|row| has(screen, row[..40].trim_end()))
    });
    tmux.press(&["h"]);
    tmux.until(|screen| has(screen, "SIZE     length of the reserve"));
    tmux.press(&["End"]);
    tmux.until(|screen| screen[8].starts_with("m map of physical memory"));
    tmux.press(&["Escape", "q"]);
    wait_until("its end", patience(), || tmux.has_ended());
    server.signal("TERM");
    server.ends_well();
}
