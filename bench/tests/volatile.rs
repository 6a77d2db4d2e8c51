//! `glebe-bench volatile` as a user meets it, under real pressure
//! where a memory cgroup can be made; and that nothing of it is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Where groups of version 1 are made; of version 2 on a machine with only that.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
const PATIENCE: Duration = Duration::from_secs(30);

fn glebe(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench")).args(args).output();
    output.expect("the program starts")
}

/// Groups that this process made, by its number in their names.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let wanted = format!("glebe-pressure-{pid}-");
    let of = |mount: &str| fs::read_dir(mount).ok();
    let entries = MOUNTS.iter().filter_map(|mount| of(mount)).flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    paths.filter(|path| name(path).is_some_and(|name| name.starts_with(&wanted))).collect()
}

fn wait_for(mut what: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if what() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Ends the program when the test does, by panic too.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interrupt_removes_the_group_and_who_is_inside() {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_glebe-bench")]);
    command.args(["volatile", "--quick"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Running(command.spawn().expect("the program starts"));
    let pid = run.0.id();
    let mut ended = false;
    let begun = wait_for(|| {
        ended = run.0.try_wait().unwrap().is_some();
        ended || groups_of(pid).iter().any(|group| !members(group).is_empty())
    });
    if ended || !begun {
        println!("skipped: no group of version 1 can be made");
        return;
    }
    let inside: Vec<u32> = groups_of(pid).iter().flat_map(|group| members(group)).collect();
    let kill = Command::new("kill").args(["-s", "INT", &pid.to_string()]).status();
    assert!(kill.unwrap().success());
    assert!(!run.0.wait().unwrap().success());
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
    for member in inside {
        assert!(!Path::new(&format!("/proc/{member}")).exists(), "{member} is left");
    }
}

fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn only_a_parent_has_a_child_inside() {
    assert!(!String::from_utf8_lossy(&glebe(&["--help"]).stdout).contains("child"));
    let nowhere = glebe(&["child", "1", "inside", "/nonexistent", "{}"]);
    let error = String::from_utf8_lossy(&nowhere.stderr);
    assert!(!nowhere.status.success() && error.contains("parent"), "{nowhere:?}");
}
