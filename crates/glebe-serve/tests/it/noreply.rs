//! Tests that `noreply` suppresses every answer, because a client would take such an answer for
//! the answer to its next command.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use glebe_testing::time::slowed;

use crate::running::{dialogue, short, Feeding, Running};

/// Sends a request and `mn`. Returns all answers.
fn heard(server: &Running, request: &[u8]) -> String {
    let mut stream = server.connect();
    // The server may close before it has read everything.
    let sent = stream.write_all(request).and_then(|()| stream.write_all(b"mn\r\n"));
    let _ = sent.and_then(|()| stream.shutdown(Shutdown::Write));
    let mut heard = Vec::new();
    let end = stream.read_to_end(&mut heard);
    let is_open = end.is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
    assert!(!is_open, "no end after {} and {}", short(request), short(&heard));
    short(&heard)
}

/// Returns storing commands, valid and malformed, with a key of `key` bytes and a value of `len`.
fn stores(verb: &str, key: usize, len: usize) -> Vec<String> {
    let (key, value, number) = ("k".repeat(key), "v".repeat(len), number(verb));
    [
        format!("{verb} {key} 0 0 {len}{number} noreply"),
        format!("{verb} {key} 0 0 {len}{number} more noreply"),
        format!("{verb} {key} x 0 {len}{number} noreply"),
        format!("{verb} {key} 4294967296 0 {len}{number} noreply"),
        format!("{verb} {key} 0 x {len}{number} noreply"),
        format!("{verb} {key} 0 99999999999999999999 {len}{number} noreply"),
    ]
    .map(|line| format!("{line}\r\n{value}\r\n"))
    .to_vec()
}

fn number(verb: &str) -> &'static str {
    if verb == "cas" {
        " 7"
    } else {
        ""
    }
}

const VERBS: [&str; 6] = ["set", "add", "replace", "append", "prepend", "cas"];

#[test]
fn no_storing_command_is_answered() {
    let server = Running::start(|settings| settings.item_max = 100_000);
    dialogue(&mut server.connect(), "set kkkkk 0 0 1\nv\n", "STORED\n");
    for verb in VERBS {
        for (key, len) in [(1, 3), (5, 3), (251, 3), (300, 20_000), (1, 100_001), (1, 300_000)] {
            for request in stores(verb, key, len) {
                assert_eq!(heard(&server, request.as_bytes()), r"MN\r\n", "{}", &request[..20]);
            }
        }
    }
    // The CAS number is missing or malformed.
    for request in ["cas k 0 0 1 noreply\r\nv\r\n", "cas k 0 0 1 x noreply\r\nv\r\n"] {
        assert_eq!(heard(&server, request.as_bytes()), r"MN\r\n", "{request}");
    }
}

#[test]
fn no_other_command_is_answered() {
    let server = Running::start(|settings| settings.flush = false);
    dialogue(&mut server.connect(), "set text 0 0 1\nx\n", "STORED\n");
    let long = "k".repeat(251);
    for line in [
        "delete none",
        "delete none 0",
        "delete none 10",
        &format!("delete {long}"),
        "incr",
        "incr none",
        "incr none 1",
        "incr text 1",
        "incr none x",
        &format!("incr {long} 1"),
        "decr none 1",
        "decr text 1",
        "decr none -1",
        "touch",
        "touch none",
        "touch none 1",
        "touch none x",
        &format!("touch {long} 1"),
        "flush_all",
        "flush_all 10",
        "flush_all x",
        "verbosity",
        "verbosity 1",
        "verbosity x",
        "cache_memlimit",
        "cache_memlimit x",
        "cache_memlimit 1",
        "cache_memlimit 1000000",
        "slabs",
        "slabs automove x",
        "slabs reassign 1 2",
        "lru",
        "lru tune x",
        "lru_crawler",
        "lru_crawler sleep x",
        "lru_crawler metadump all",
        "lru_crawler mgdump all",
        "watch",
        "extstore",
        "debugtime 1",
        "misbehave",
    ] {
        let request = format!("{line} noreply\r\n");
        assert_eq!(heard(&server, request.as_bytes()), r"MN\r\n", "{line}");
    }
    dialogue(&mut server.connect(), "delete noreply\nget noreply\n", "NOT_FOUND\nEND\n");
}

#[test]
fn where_nobody_knows_what_comes_next_the_connection_ends_without_a_word() {
    let server = Running::start(|_| {});
    for request in [
        "set noreply",
        "set k noreply",
        "set k 0 noreply",
        "add k 0 0 noreply",
        "set k 0 0 x noreply\r\nvalue",
        "set k 0 0 -1 noreply\r\nvalue",
        "set k 0 0 99999999999999999999 noreply\r\nvalue",
        "cas k 0 0 noreply\r\nvalue",
        "unknown k 1 noreply",
        // The value exceeds its length, and the excess is no command.
        "set k 0 0 2 noreply\r\nabcdefgh",
        "set k 0 0 2 noreply\r\nab\r\r\n\x7f",
    ] {
        let request = format!("{request}\r\n");
        assert_eq!(heard(&server, request.as_bytes()), "", "{request}");
    }
    // The server skips the announced length plus two bytes, then empty lines, and stays connected.
    for request in ["set k 0 0 2 noreply\r\nabc\r\n", "set k 0 0 2 noreply\r\nabcd"] {
        assert_eq!(heard(&server, request.as_bytes()), r"MN\r\n", "{request}");
    }
}

#[test]
fn no_lack_of_memory_is_told() {
    let server = Running::start(|settings| settings.evict = false);
    let value = "v".repeat(500_000);
    let mut stream = server.connect();
    // The shorter values fill what the longer ones leave.
    for (key, len) in (0..40).zip([500_000; 40]).chain((40..80).zip([50_000; 40])) {
        let line = format!("set {key} 0 0 {len} noreply\n{}\n", &value[..len]);
        dialogue(&mut stream, &line, "");
    }
    dialogue(&mut stream, "append 0 0 0 1 noreply\nx\nmn\n", "MN\n");
    let refused = "SERVER_ERROR out of memory storing object\n";
    let set = format!("set more 0 0 500000\n{value}\n");
    dialogue(&mut stream, &set, refused);
}

#[test]
fn nor_is_a_lack_of_room_for_values_that_are_sent() {
    const LEN: usize = 8_000_000;
    let server = Running::start(|settings| settings.item_max = 8 << 20);
    let mut stream = server.connect();
    dialogue(&mut stream, "set k 0 0 3\nold\n", "STORED\n");
    // The announced values take the whole share.
    let promise = |_| {
        let mut stream = server.connect();
        write!(stream, "set other 0 0 {LEN}\r\n").expect("taken");
        stream
    };
    let promising: Vec<_> = (0..8).map(promise).collect();
    // So no value stalls.
    let _feeding = Feeding::start(promising, 4096);
    let refused = "SERVER_ERROR out of memory storing object\n";
    let value = "v".repeat(LEN);
    dialogue(&mut stream, "add k 0 0 1\nx\n", "NOT_STORED\n");
    let before = std::time::Instant::now();
    // The server may not have read the announcements yet.
    loop {
        let mut other = server.connect();
        write!(other, "add k 0 0 {LEN}\r\n{value}\r\n").expect("taken");
        let mut answer = [0; 12];
        other.read_exact(&mut answer).expect("an answer");
        if answer == refused.as_bytes()[..12] {
            break;
        }
        assert_eq!(&answer, b"NOT_STORED\r\n");
        assert!(before.elapsed() < slowed(std::time::Duration::from_secs(20)));
    }
    dialogue(&mut stream, "get k\n", "VALUE k 0 3\nold\nEND\n");
    // A refused `set` deletes the old item.
    dialogue(&mut stream, &format!("set k 0 0 {LEN} noreply\n{value}\nget k\n"), "END\n");
}

#[test]
fn a_quiet_meta_command_hides_what_is_as_usual_and_no_error() {
    let server = Running::start(|settings| settings.item_max = 10_000);
    let long = "k".repeat(251);
    let text = format!(
        "ms k 1 q\n5\nmg none v q\nmg none N0 q k v\nma k q\nma new N0 J1 q v\nmd k q\nmd new q\n\
         ms k 1 q\n5\nmn\nmd other q\nma other q\nms k 1 q ME\nx\nms k 1 q C1\nx\nms k 1 q Mz\nx\n\
         mg {long} q\nms k x q\nmd k q q\nma k q Dx\nms k 10001 q\n{}\nmn\n",
        "x".repeat(10_001),
    );
    let hears = "VA 0 knone W\n\nMN\nNF\nNF\nNS\nEX\nCLIENT_ERROR invalid mode for ms M token\n\
         CLIENT_ERROR bad command line format\nCLIENT_ERROR bad data chunk\n\
         CLIENT_ERROR duplicate flag\nCLIENT_ERROR invalid numeric delta value\n\
         SERVER_ERROR object too large for cache\nMN\n";
    dialogue(&mut server.connect(), &text, hears);
}
