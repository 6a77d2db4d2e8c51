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
    rest(&mut serving)
}

/// Returns the log of a server that has ended.
fn rest(serving: &mut Serving) -> String {
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

#[test]
fn no_client_can_fill_the_log() {
    const COMMANDS: usize = 5000;
    let mut command = glebe();
    command.args(["serve", "--no-stats", "-l", "127.0.0.1:0", "-vv"]);
    let mut serving = Serving::start(command.stderr(Stdio::piped()), 2);
    let mut client = serving.connect();
    dialogue(&mut client, &"mn\n".repeat(COMMANDS), &"MN\n".repeat(COMMANDS));
    dialogue(&mut client, "quit\n", "");
    // The server logs the end of a connection before it closes it.
    assert_eq!(client.read(&mut [0]).expect("its end"), 0);
    serving.signal("TERM");
    serving.ends_well();
    let text = rest(&mut serving);
    let left_out = |line: &str| {
        let lines = line.strip_prefix("glebe serve: ")?;
        lines.strip_suffix(" more lines of -vv were left out")?.parse::<usize>().ok()
    };
    let logged = text.lines().filter(|line| line.starts_with(['<', '>'])).count();
    let left_out: usize = text.lines().filter_map(left_out).sum();
    // Each command has a line and an answer, and the beginning, `quit` and the end a line each.
    assert_eq!(logged + left_out, 2 * COMMANDS + 3, "{text}");
    assert!(left_out > 0, "{text}");
}

#[test]
fn a_long_line_is_cut() {
    let mut command = glebe();
    command.args(["serve", "--no-stats", "-l", "127.0.0.1:0", "-vv"]);
    let mut serving = Serving::start(command.stderr(Stdio::piped()), 2);
    for len in [1000, 20_000] {
        let keys = "get ".to_owned() + &"k ".repeat(len / 2);
        dialogue(&mut serving.connect(), &format!("{keys}\n"), "END\n");
    }
    serving.signal("TERM");
    serving.ends_well();
    let text = rest(&mut serving);
    let long: Vec<&str> = text.lines().filter(|line| line.contains(" get k k k ")).collect();
    assert!(long.len() >= 2 && long[0].ends_with(" k ") && long[1].ends_with("..."), "{text}");
    assert!(long[0].len() > 1000 && long[1].len() == 1024, "{text}");
}
