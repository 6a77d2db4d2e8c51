//! Tests `glebe serve --leases`, `glebe lease` and `glebe leases`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use glebe::internal::sys::processes::process::effective_user;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{tools, Scratch};

use super::{glebe, output, Serving};

fn text(command: &mut Command) -> (bool, String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Starts a server, or prints that this user has no huge pages. Returns it with its socket.
fn lending(scratch: &Scratch, mib: &str) -> Option<(Serving, String)> {
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (socket, cache) = (at("leases"), at("cache"));
    let args = ["serve", "--no-stats", "--leases", "-m", mib, "-s", &cache];
    let mut command = glebe();
    command.args(args).args(["--lease-socket", &socket, "--lease-zeroed", "4M"]);
    command.args(["--lease-grow", "17M"]);
    let server = Serving::start(&mut command, 3);
    if server.said[0].is_empty() {
        println!("skipped: this user has no pages of the 2 MiB pool");
        return None;
    }
    Some((server, socket))
}

#[test]
fn a_program_has_leased_memory_until_it_ends() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("leases"));
    let Some((mut server, socket)) = lending(&scratch, "64") else { return };
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

fn kernel() -> Option<PathBuf> {
    let named = std::env::var_os("GLEBE_TEST_KERNEL").map(PathBuf::from);
    let all = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz");
    named.or_else(|| all.map(|entry| entry.path()).find(is_kernel))
}

/// A machine boots until its kernel finds no file system.
#[test]
fn qemu_boots_a_kernel_on_a_lease() {
    let Some(kernel) = kernel().filter(|_| tools::has("qemu-system-x86_64")) else {
        return println!("skipped: no qemu-system-x86_64, or no kernel in /boot");
    };
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("leases"));
    let Some((server, socket)) = lending(&scratch, "256") else { return };
    let memory = "memory-backend-file,share=on,id=m,size=192M,mem-path=/proc/self/fd/";
    let script = format!(
        "exec timeout 120 qemu-system-x86_64 -machine memory-backend=m -m 192M \
         -object {memory}$GLEBE_LEASE_FD -kernel \"$0\" -append 'console=ttyS0 panic=-1' \
         -accel tcg -nographic -no-reboot -nic none </dev/null"
    );
    let mut command = glebe();
    command.args(["lease", "--socket", &socket, "192M", "--", "sh", "-c", &script]).arg(kernel);
    let (_, said, wrong) = text(&mut command);
    for line in ["Linux version", "Unable to mount root fs"] {
        assert!(said.contains(line), "no {line:?} in {said}{wrong}");
    }
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket]));
    assert_eq!(said, "no leases\n");
    drop(server);
}

#[test]
fn options_are_checked_without_a_server() {
    let right = output(&["serve", "--check", "--leases", "--lease-limit", "1G"]);
    assert!(right.status.success(), "{right:?}");
    let wrong = output(&["serve", "--check", "--leases", "--lease-zeroed", "much"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
