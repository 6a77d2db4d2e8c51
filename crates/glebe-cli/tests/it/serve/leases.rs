//! Tests `glebe serve --leases`, `glebe lease` and `glebe leases`.

use std::process::Command;
use std::time::Duration;

use glebe::internal::sys::processes::process::effective_user;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use super::{glebe, output, Serving};

fn text(command: &mut Command) -> (bool, String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_program_has_leased_memory_until_it_ends() {
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("leases");
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (socket, cache) = (at("leases"), at("cache"));
    let args = ["serve", "--no-stats", "--leases", "-m", "64", "-s", &cache];
    let mut command = glebe();
    command.args(args).args(["--lease-socket", &socket, "--lease-zeroed", "4M"]);
    command.args(["--lease-grow", "17M"]);
    let mut server = Serving::start(&mut command, 3);
    if server.said[0].is_empty() {
        return println!("skipped: this user has no pages of the 2 MiB pool");
    }
    assert_eq!(server.said[2], format!("leases at {socket}"));
    let list = format!("{} leases --socket {socket}", env!("CARGO_BIN_EXE_glebe"));
    let sizes = "echo $GLEBE_LEASE_BYTES; stat -Lc %s /proc/self/fd/$GLEBE_LEASE_FD";
    let script = format!("{sizes}; {list}");
    let lease = ["lease", "--socket", &socket, "--name", "a name", "3M", "--", "sh", "-c", &script];
    let (success, said, wrong) = text(glebe().args(lease));
    assert!(success, "{said}{wrong}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["4194304", "4194304"]);
    assert!(lines[3].contains("4 MiB") && lines[3].ends_with("a name"), "{said}");
    assert_eq!(lines[4], "1 leases, 4 MiB");
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket, "--json"]));
    assert_eq!(said, "[]\n");
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket, "--openmetrics"]));
    assert!(said.contains("glebe_lease_leased_total 1\n"), "{said}");
    let much = ["lease", "--socket", &socket, "1T", "--", "true"];
    let (success, _, wrong) = text(glebe().args(much));
    assert!(!success && wrong.contains("1 TiB asked for"), "{wrong}");
    if effective_user() == 0 {
        // The reserve has 54 MiB, and may have 16 more.
        let more = ["lease", "--socket", &socket, "64M", "--", "true"];
        let (success, _, wrong) = text(glebe().args(more));
        assert!(!success && wrong.contains("memory is being added"), "{wrong}");
        let is_had = || text(glebe().args(more)).0;
        wait_until("memory is added", Duration::from_secs(20), is_had);
    }
    server.signal("TERM");
    server.ends_well();
    let (success, _, wrong) = text(glebe().args(["leases", "--socket", &socket]));
    assert!(!success && wrong.contains("glebe serve --leases"), "{wrong}");
}

#[test]
fn options_are_checked_without_a_server() {
    let right = output(&["serve", "--check", "--leases", "--lease-limit", "1G"]);
    assert!(right.status.success(), "{right:?}");
    let wrong = output(&["serve", "--check", "--leases", "--lease-zeroed", "much"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
