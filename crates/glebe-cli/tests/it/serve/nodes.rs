//! Tests clients that spread keys over three nodes. One node loses memory, and is killed later: the
//! script says how. Each client that is not installed is skipped.

use std::path::Path;
use std::process::Command;

use glebe_testing::tools;

fn clients(names: &[&str]) {
    // The environment of the Python tests has a client.
    let target = Path::new(env!("CARGO_BIN_EXE_glebe")).ancestors().nth(2).unwrap();
    let environment = target.join("python/bin/python3");
    let python = if environment.exists() { environment } else { "python3".into() };
    if !tools::has(&python.to_string_lossy()) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/nodes_tests.py");
    let mut python = Command::new(python);
    python.arg(script).args(["--glebe", env!("CARGO_BIN_EXE_glebe")]).args(names);
    let said = tools::run(&mut python).stdout;
    print!("{}", String::from_utf8_lossy(&said));
}

#[test]
fn a_client_of_its_own_sees_no_dead_node() {
    clients(&["own"]);
}

#[test]
fn installed_python_clients_see_no_dead_node() {
    clients(&["pymemcache", "pylibmc"]);
}

#[test]
fn twemproxy_sees_no_dead_node() {
    clients(&["twemproxy"]);
}

#[test]
fn libmemcached_tools_see_no_dead_node_and_no_wrong_value() {
    clients(&["memccp", "memcaslap"]);
}
