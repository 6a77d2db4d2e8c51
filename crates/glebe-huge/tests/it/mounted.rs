//! Files on hugetlbfs, which root mounts in a namespace of the test's own.

use std::process::Command;

use glebe_testing::tools;
use glebed::Settings;

use crate::running::Running;

const BRICKS: u64 = 24;

/// Mounts, and runs a program with the library as a user.
const SCRIPT: &str = r#"
mkdir -p "$HUGE_FOLDER" && mount -t hugetlbfs -o mode=1777 none "$HUGE_FOLDER" || exit 9
exec setpriv --reuid "$0" --regid "$0" --clear-groups env LD_PRELOAD="$LIBRARY" "$@"
"#;

/// Without words the caller names the program.
fn mounted(running: &Running, user: &str, words: &[&str]) -> Command {
    let mut command = running.with_library("unshare", "verbose");
    let folder = running.scratch().join("pages");
    command.env_remove("LD_PRELOAD").env("LIBRARY", running.library());
    command.env("HUGE_FOLDER", folder).args(["-m", "sh", "-c", SCRIPT, user]);
    if !words.is_empty() {
        command.arg(running.program()).args(words);
    }
    command
}

fn running() -> Option<Running> {
    Running::new("mounted.c", BRICKS, Settings::default())
}

fn can_mount() -> bool {
    let is_root = glebe::internal::sys::processes::process::effective_user() == 0;
    if !is_root {
        println!("skipped: only root mounts hugetlbfs");
    }
    is_root && ["unshare", "setpriv", "mount"].into_iter().all(tools::has)
}

fn passes(name: &str) {
    if !can_mount() {
        return;
    }
    let Some(running) = running() else { return };
    for user in ["0", "65534"] {
        let told = running.told(&mut mounted(&running, user, &[name]));
        assert!(told.contains("leased") && !told.contains("refused"), "{told}");
    }
}

#[test]
fn every_way_to_open_a_new_file_counts() {
    passes("opens");
}

#[test]
fn a_file_may_lose_its_name_and_have_no_length() {
    passes("unlinked");
}

#[test]
fn the_name_leads_to_the_kernels_file() {
    passes("stranger");
}

#[test]
fn the_pages_that_can_be_leased_are_shown_on_demand() {
    if !can_mount() {
        return;
    }
    let Some(running) = running() else { return };
    let words = [("-1", "verbose"), ("3", "show-pages,quota=6291456"), ("24", "show-pages")];
    for (pages, words) in words {
        let mut command = mounted(&running, "65534", &["shown"]);
        running.told(command.env("PAGES", pages).env("GLEBE_HUGE", words));
    }
}

/// The DPDK counts free pages, maps new files, reads their physical addresses, and moves packets.
#[test]
fn dpdk_moves_packets() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 || !can_mount() || !is_there("dpdk-testpmd") {
        return println!("skipped: no dpdk-testpmd, or one processor");
    }
    let Some(running) = running() else { return };
    for memory in [&["--huge-unlink"][..], &["--in-memory"], &[]] {
        let mut command = mounted(&running, "0", &[]);
        let folder = running.scratch().join("pages").display().to_string();
        let prefix = format!("glebe-test-{}", std::process::id());
        command.args(["sh", "-c", "(sleep 3) | dpdk-testpmd \"$@\"", "sh"]).args(memory);
        command.args(["--no-pci", "--no-telemetry", "-m", "24", "-l", "0,1", "--huge-dir"]);
        command.args([&folder, "--file-prefix", &prefix]);
        command.args(["--vdev=net_null0", "--vdev=net_null1", "--", "--total-num-mbufs=2048"]);
        command.args(["--auto-start", "--no-mlockall", "--forward-mode=io"]);
        command.env("GLEBE_HUGE", "show-pages");
        let output = command.output().expect("unshare starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{memory:?}: {said}{told}");
        let total = said.rsplit("Accumulated forward statistics").next().expect("an end");
        let moved = total.split("RX-packets:").nth(1).and_then(|it| it.split_whitespace().next());
        let moved: u64 = moved.and_then(|it| it.parse().ok()).expect("a number");
        assert!(moved > 0 && told.contains("glebe: dpdk-testpmd"), "{memory:?}: {said}{told}");
        assert!(told.contains("leased 24 MiB"), "{memory:?}: {said}{told}");
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
