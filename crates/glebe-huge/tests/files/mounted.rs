//! Files on hugetlbfs, which root mounts in a namespace of the test's own.

use std::process::Command;

use glebe_testing::tools;

use super::running::Running;

/// Mounts, and runs a program with the library as a user.
const SCRIPT: &str = r#"
mkdir -p "$HUGE_FOLDER" && mount -t hugetlbfs -o mode=1777 none "$HUGE_FOLDER" || exit 9
exec setpriv --reuid "$0" --regid "$0" --clear-groups env LD_PRELOAD="$LIBRARY" "$@"
"#;

fn mounted(running: &Running, user: &str, words: &[&str]) -> Command {
    let mut command = running.command("unshare", "verbose");
    let folder = running.folder().join("mounted");
    command.env_remove("LD_PRELOAD").env("LIBRARY", running.library());
    command.env("HUGE_FOLDER", folder).args(["-m", "sh", "-c", SCRIPT, user]);
    command.arg(running.program()).args(words);
    command
}

fn passes(name: &str) {
    let is_root = glebe::internal::sys::processes::process::effective_user() == 0;
    if !is_root {
        return println!("skipped: only root mounts hugetlbfs");
    }
    if !["unshare", "setpriv", "mount"].into_iter().all(tools::has) {
        return;
    }
    let Some(running) = Running::new("mounted.c") else { return };
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
