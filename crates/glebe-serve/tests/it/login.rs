//! Tests that a server with passwords serves only clients that log in, with memcached's answers.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use glebe_testing::Scratch;

use crate::peer::Peer;
use crate::running::{dialogue, short, Running};

const USERS: &str = "joe:secret\nann:a:b\n";

/// Each write, and what a server without that client's login answers.
const TALKS: &[(&str, &str)] = &[
    ("get a\n", "CLIENT_ERROR unauthenticated\n"),
    ("version\n", "CLIENT_ERROR unauthenticated\n"),
    ("quit\n", "CLIENT_ERROR unauthenticated\n"),
    ("\n", "CLIENT_ERROR unauthenticated\n"),
    ("set x 0 0\n", "CLIENT_ERROR unauthenticated\n"),
    ("set x 0 0 -1\n", "CLIENT_ERROR unauthenticated\n"),
    ("GET / HTTP/1.1\n", "CLIENT_ERROR unauthenticated\n"),
    ("set x 0 0 9\njoe wrong\n", "CLIENT_ERROR authentication failure\n"),
    ("set x 0 0 9\nno secret\n", "CLIENT_ERROR authentication failure\n"),
    ("set x 0 0 7\nann a:b\nget a\n", "STORED\nEND\n"),
    ("set x 0 0 3\njoe\n", "CLIENT_ERROR bad authentication token format\n"),
    ("set x 0 0 0\n\n", "CLIENT_ERROR bad authentication token format\n"),
    ("set x 0 0 3\njoexx", "CLIENT_ERROR bad command line termination\n"),
    ("set x 0 0 10\njoe secret\nmn\n", "STORED\nMN\n"),
    ("set x 5 9 10 noreply\njoe secret\nmn\n", "STORED\nMN\n"),
    ("set x 0 0 15\njoe secret more\nmn\n", "STORED\nMN\n"),
    ("set x 0 0 12\n joe  secret\nget x\n", "STORED\nEND\n"),
];

fn started(users: &std::path::Path) -> Running {
    std::fs::write(users, USERS).expect("written");
    Running::start(|settings| settings.access.passwords = Some(users.to_owned()))
}

#[test]
fn nobody_is_served_before_a_login() {
    let scratch = Scratch::new("login");
    let server = started(&scratch.path().join("users"));
    for (says, hears) in TALKS {
        dialogue(&mut server.connect(), says, hears);
        let mut bytewise = server.connect();
        for byte in says.replace('\n', "\r\n").as_bytes() {
            bytewise.write_all(&[*byte]).expect("taken");
        }
        dialogue(&mut bytewise, "", hears);
    }
    dialogue(
        &mut server.connect(),
        "set foo 0 0 2147483645\nset x 0 0 10\njoe secret\n",
        "CLIENT_ERROR auth token too long\nSTORED\n",
    );
    // A failed login leaves the connection as it was, and nothing is stored.
    let mut stream = server.connect();
    dialogue(
        &mut stream,
        "set k 0 0 9\njoe wrong\nset k 0 0 1\nx\nset k 0 0 10\njoe secret\nget k\n",
        "CLIENT_ERROR authentication failure\nCLIENT_ERROR bad authentication token format\n\
         STORED\nEND\n",
    );
    dialogue(&mut stream, "set k 0 0 1\nx\nget k\n", "STORED\nVALUE k 0 1\nx\nEND\n");
    let stats = stats(&mut stream);
    let counted = |talk: &&(&str, &str)| talk.1.contains("STORED") || talk.1.contains("failure");
    let asked = 2 * TALKS.iter().filter(counted).count() + 3;
    assert!(stats.contains(&format!("STAT auth_cmds {asked}\r\n")), "{asked}: {stats}");
    assert!(stats.contains("STAT auth_errors 5\r\n"), "{stats}");
}

/// Three wrong passwords, and two lines that do not count as such.
const GUESSES: &str = "set x 0 0 9\njoe wrong\nset x 0 0 3\njoe\nget a\n\
    set x 0 0 9\njoe guess\nset x 0 0 9\njoe third\n";
const REFUSALS: &str = "CLIENT_ERROR authentication failure\n\
    CLIENT_ERROR bad authentication token format\nCLIENT_ERROR unauthenticated\n\
    CLIENT_ERROR authentication failure\nCLIENT_ERROR authentication failure\n";

#[test]
fn a_connection_ends_after_three_wrong_passwords() {
    let scratch = Scratch::new("login-guesses");
    let server = started(&scratch.path().join("users"));
    let mut honest = server.connect();
    dialogue(&mut honest, "set x 0 0 9\njoe secre\n", "CLIENT_ERROR authentication failure\n");
    for _ in 0..20 {
        let mut guesser = server.connect();
        dialogue(&mut guesser, GUESSES, REFUSALS);
        assert!(is_closed(&mut guesser), "it may guess on");
    }
    // Bytes after the last guess are not handled.
    let mut guesser = server.connect();
    dialogue(&mut guesser, &format!("{GUESSES}set x 0 0 10\njoe secret\nmn\n"), REFUSALS);
    assert!(is_closed(&mut guesser), "it may log in");
    // Others' failures are not held against an address.
    let two = "set x 0 0 9\njoe guess\nset x 0 0 10\njoe secret\nmn\n";
    dialogue(&mut honest, two, "CLIENT_ERROR authentication failure\nSTORED\nMN\n");
    let stats = stats(&mut honest);
    assert!(stats.contains("STAT auth_cmds 66\r\n"), "{stats}");
    assert!(stats.contains("STAT auth_errors 65\r\n"), "{stats}");
}

fn stats(stream: &mut TcpStream) -> String {
    stream.write_all(b"stats\r\n").expect("taken");
    let mut stats = String::new();
    while !stats.ends_with("END\r\n") {
        let mut bytes = [0; 4096];
        let got = stream.read(&mut bytes).expect("an answer");
        assert!(got > 0, "{stats}");
        stats.push_str(&String::from_utf8_lossy(&bytes[..got]));
    }
    stats
}

#[test]
fn memcached_gives_the_same_answers() {
    let scratch = Scratch::new("login-peer");
    let users = scratch.path().join("users");
    std::fs::write(&users, USERS).expect("written");
    let Some(peer) = Peer::start(&["-Y", users.to_str().expect("text")]) else { return };
    for (says, hears) in TALKS {
        dialogue(&mut peer.connect(), says, hears);
    }
}

#[test]
fn a_client_without_a_login_gets_no_memory() {
    let scratch = Scratch::new("login-long");
    let server = started(&scratch.path().join("users"));
    let endless_line = vec![b'x'; 1 << 20];
    let keys = [&b"get "[..], &endless_line].concat();
    let value = [&b"set k 0 0 9999999\r\n"[..], &endless_line].concat();
    for bytes in [&endless_line, &keys, &value] {
        let mut stream = server.connect();
        // The server closes before it reads all of it.
        let _ = stream.write_all(bytes);
        assert!(is_closed(&mut stream), "{}", short(bytes));
    }
    let mut honest = server.connect();
    dialogue(&mut honest, "set k 0 0 10\njoe secret\nmn\n", "STORED\nMN\n");
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    match stream.read_to_end(&mut Vec::new()) {
        Ok(got) => got < 100,
        Err(e) => e.kind() == ErrorKind::ConnectionReset,
    }
}
