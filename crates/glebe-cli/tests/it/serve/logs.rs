//! Tests what `-v`, `-vv`, `-vvv` and the command `verbosity` log to standard error.

use std::io::Read;
use std::process::Stdio;

use super::{dialogue, glebe, Serving};

/// Returns the log of a server with `option` after a short conversation.
fn log(option: Option<&str>) -> String {
    let mut command = glebe();
    command.args(["serve", "--no-stats", "-l", "127.0.0.1:0", "-c", "2"]).args(option);
    let mut serving = Serving::start(command.stderr(Stdio::piped()), 2);
    let mut client = serving.connect();
    dialogue(&mut client, "set k 0 0 1\nx\nget k\n", "STORED\nVALUE k 0 1\nx\nEND\n");
    let mut other = serving.connect();
    dialogue(&mut other, "mn\n", "MN\n");
    dialogue(&mut serving.connect(), "", "ERROR Too many open connections\n");
    dialogue(&mut client, "verbosity 0\nget quiet\nverbosity 2\nget loud\n", "OK\nEND\nOK\nEND\n");
    drop(client);
    serving.signal("TERM");
    serving.ends_well();
    let mut text = String::new();
    let stderr = serving.child.stderr.as_mut().expect("a pipe");
    stderr.read_to_string(&mut text).expect("text");
    text
}

#[test]
fn each_level_logs_more() {
    let logs = [None, Some("-v"), Some("-vv"), Some("-vvv")].map(log);
    for (level, text) in logs.iter().enumerate() {
        let has = |part: &str| text.contains(part);
        assert_eq!(has(": refused, 2 connections\n"), level > 0, "{level}: {text}");
        assert_eq!(has(" get k\n") && has(" VALUE k 0 1\n"), level > 1, "{level}: {text}");
        assert_eq!(has(" new client connection\n"), level > 1, "{level}: {text}");
        assert_eq!(has(": going to conn_read\n"), level > 2, "{level}: {text}");
        assert!(!has("get quiet") && has(" get loud\n"), "{level}: {text}");
    }
}
