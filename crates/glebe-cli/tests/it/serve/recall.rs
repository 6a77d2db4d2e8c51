//! Tests that `glebe recall` takes memory inside a server, and that clients see misses.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use glebe_testing::time::wait_until;
use glebe_testing::{openmetrics, Scratch};

use super::{dialogue, glebe, line, list, output, patience, Serving};

fn controlled(dir: &Path, path: &Path) -> Serving {
    let mut command = glebe();
    command.args(["serve", "--memcached", "-m", "16", "-l", "127.0.0.1:0", "--control"]).arg(path);
    command.env("XDG_RUNTIME_DIR", dir);
    Serving::start(&mut command, 3)
}

fn stat(stream: &mut TcpStream, name: &str) -> u64 {
    let rows = list(stream, "stats");
    let row = rows.iter().find_map(|row| row.strip_prefix(&format!("STAT {name} ")));
    row.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {rows:?}"))
}

/// Returns the gauge of bytes that the cache does not have at present.
fn held(dir: &Path) -> u64 {
    let mut command = glebe();
    let said = command.args(["stats", "--openmetrics", "--dir"]).arg(dir.join("glebe")).output();
    let text = String::from_utf8(said.expect("the program starts").stdout).expect("text");
    let families = openmetrics::parse(&text).expect("OpenMetrics");
    let held = families.iter().find(|family| family.name == "glebe_reserve_held_bytes");
    held.unwrap_or_else(|| panic!("no gauge: {text}")).samples[0].value as u64
}

/// Number of items of 100 kB. With more items the index may lack memory.
const ITEMS: usize = 70;

fn fill(stream: &mut TcpStream) {
    for key in 0..ITEMS {
        let value = "x".repeat(100_000);
        dialogue(stream, &format!("set {key} 0 0 100000\n{value}\n"), "STORED\n");
    }
}

fn hits(stream: &mut TcpStream) -> usize {
    (0..ITEMS).filter(|key| list(stream, &format!("get {key}")).len() == 2).count()
}

#[test]
fn a_recall_takes_memory_for_a_time_and_gives_it_back() {
    let scratch = Scratch::new("recall");
    let control = scratch.path().join("control");
    let serving = controlled(scratch.path(), &control);
    assert_eq!(serving.said[2], format!("control socket {}", control.display()));
    let mut stream = serving.connect();
    fill(&mut stream);
    assert_eq!((hits(&mut stream), stat(&mut stream, "recalled_items")), (ITEMS, 0));
    let limit = stat(&mut stream, "limit_now");
    let taken = |stream: &mut TcpStream| (stat(stream, "bytes_taken"), held(scratch.path()));
    assert_eq!(taken(&mut stream), (0, 0));

    let mut recall = glebe();
    recall.args(["recall", "8M", "--for", "60s", "--control"]).arg(&control);
    let mut holding = Serving::start(&mut recall, 1);
    let said = &holding.said[0];
    assert!(
        said.starts_with("8.0 MiB of 8.0 MiB taken in ") || said.starts_with("8 MiB of 8 MiB"),
        "{said}"
    );
    assert!(said.contains(" us; held for 60s"), "{said}");
    assert!(stat(&mut stream, "limit_now") <= limit - (5 << 20));
    assert_eq!(taken(&mut stream), (8 << 20, 8 << 20));
    let left = hits(&mut stream);
    assert!((1..ITEMS).contains(&left), "{left} of {ITEMS} items are left");
    let lost = stat(&mut stream, "recalled_items") + stat(&mut stream, "evictions");
    assert_eq!(left as u64 + lost, ITEMS as u64);

    // The server gets the memory back when the process of `glebe recall` ends.
    holding.child.kill().expect("killed");
    let is_back = || stat(&mut stream, "limit_now") >= limit;
    wait_until("the memory is back", Duration::from_secs(20), is_back);
    assert_eq!(taken(&mut stream), (0, 0));
    fill(&mut stream);
    assert_eq!(hits(&mut stream), ITEMS);
    drop(holding);

    let begin = Instant::now();
    let control = control.to_str().expect("text");
    let done = output(&["recall", "1M", "--for", "300ms", "--control", control]);
    assert!(done.status.success(), "{done:?}");
    assert!(begin.elapsed().as_millis() >= 300);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.ends_with("given back\n") && text.lines().count() == 2, "{text}");
}

#[test]
fn a_control_socket_that_is_named_needs_no_place_for_statistics() {
    let scratch = Scratch::new("no-stats");
    // This file keeps the server from making a folder for its statistics.
    std::fs::write(scratch.path().join("glebe"), "").expect("written");
    let control = scratch.path().join("control");
    let serving = controlled(scratch.path(), &control);
    assert_eq!(serving.said[2], format!("control socket {}", control.display()));
    let done = output(&["recall", "1M", "--for", "1ms", "--control", control.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.contains(" taken in 1 run within "), "{done:?}");
}

#[test]
fn the_only_server_is_found_and_of_two_one_is_to_be_named() {
    let scratch = Scratch::new("found");
    let recall = |size: &str| {
        let mut command = glebe();
        command.args(["recall", size, "--for", "1ms"]).env("XDG_RUNTIME_DIR", scratch.path());
        command.stdin(Stdio::null()).output().expect("the program starts")
    };
    let start = || {
        let mut command = glebe();
        command.args(["serve", "-m", "8", "-l", "127.0.0.1:0"]);
        Serving::start(command.env("XDG_RUNTIME_DIR", scratch.path()), 3)
    };
    // Root also finds servers of other users.
    let is_alone = String::from_utf8_lossy(&recall("4K").stderr).contains("no `glebe serve`");
    if !is_alone {
        eprintln!("skipped: another `glebe serve` is running");
        return;
    }
    let one = start();
    assert!(recall("1M").status.success());
    assert_eq!(recall("nothing").status.code(), Some(2));
    let other = start();
    let refused = recall("1M");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--control"), "{refused:?}");
    drop(other);
    // The killed server left its control socket behind.
    assert!(recall("1M").status.success());
    drop(one);
}

#[test]
fn the_control_socket_refuses_what_is_no_request() {
    let scratch = Scratch::new("wrong");
    let control = scratch.path().join("control");
    let _serving = controlled(scratch.path(), &control);
    for wrong in ["recall\n", "recall many 1\n", "recall 1 2 3\n", "lease 1 1\n", "\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(&control).expect("connect");
        stream.set_read_timeout(Some(patience())).expect("a timeout");
        stream.write_all(wrong.as_bytes()).expect("taken");
        let answer = line(&mut std::io::BufReader::new(stream));
        assert!(answer.starts_with("error not a request"), "{wrong:?}: {answer}");
    }
}
