//! Tests `glebe run --contig` with a server, and Python as the program.

use std::process::Command;

use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{tools, Scratch};

use crate::libraries;
use crate::serve::leases::lending;
use crate::serve::{glebe, patience};

/// Maps huge pages, and prints what is in them after a write. 0x40000 is `MAP_HUGETLB`.
const PROGRAM: &str = "
import mmap, os
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000
memory = mmap.mmap(-1, 8 << 20, flags=flags)
memory[5 << 20] = 7
print(memory[4 << 20], memory[5 << 20], flush=True)
os.system(os.environ['LIST'])
";

#[test]
fn a_program_gets_huge_pages_until_it_ends() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("contig-run"));
    if !tools::has("python3") {
        return;
    }
    let Some((_server, socket)) = lending(&scratch, "64") else { return };
    let list =
        format!("env -u LD_PRELOAD {} leases --socket {socket}", glebe().get_program().display());
    let lib = libraries::folder();
    let run = |options: &[&str]| {
        let mut command = glebe();
        command.args(["run", "--contig", "--socket", &socket, "--lib"]).arg(lib).args(options);
        command.args(["--", "python3", "-c", PROGRAM]).env("LIST", &list);
        command.output().expect("the program starts")
    };
    let output = run(&["--required"]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{told}");
    assert!(
        said.starts_with("0 7\n") && said.contains("8 MiB") && said.contains("python3"),
        "{said}"
    );
    assert!(
        told.starts_with("glebe: python3 (") && told.contains("leased 8 MiB in 1 mapping"),
        "{told}"
    );
    wait_until("the lease has ended", patience(), || {
        let said = Command::new("sh").args(["-c", &list]).output().expect("a shell");
        text(&said.stdout).starts_with("no leases")
    });
    let output = run(&["--required", "--quota", "4M"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(told.contains("8192 KiB of huge pages cannot be had: the quota is 4 MiB"), "{told}");
}
