//! A child does its task, and ends when its parent no longer needs it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const MOST: u64 = 8 << 20;

fn child(words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(["child", &std::process::id().to_string()]).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

fn lines(child: &mut Child) -> (impl Iterator<Item = String>, u64) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    let held = lines.next().and_then(|line| line.strip_prefix("held ")?.parse().ok());
    (lines, held.expect("it says what it holds"))
}

#[test]
fn it_has_a_parent_and_a_task_that_makes_sense() {
    let mut orphan = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    orphan.args(["child", "1", "fragment", "8388608"]);
    for (output, said) in [
        (orphan.output().unwrap(), "the parent is gone"),
        (child(&["no-such"]).wait_with_output().unwrap(), "no task"),
        (child(&["apart", "{}"]).wait_with_output().unwrap(), ""),
    ] {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn who_takes_memory_holds_what_it_says_and_tells_what_it_saw_since_it_was_asked() {
    for (task, expected) in [("fragment", MOST / 2), ("busy", MOST)] {
        let mut child = child(&[task, &MOST.to_string()]);
        let (mut lines, held) = lines(&mut child);
        let resident = fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
        let resident: u64 = resident.split(' ').nth(1).unwrap().parse().unwrap();
        let bytes = resident * glebe::page_size().bytes().get();
        if held == 0 {
            return println!("skipped: the machine has too little left");
        }
        assert_eq!(held, expected, "{task}");
        assert!((held..MOST + (16 << 20)).contains(&bytes), "{task}: {bytes}");
        for _ in (0..2).take_while(|_| task == "busy") {
            std::thread::sleep(std::time::Duration::from_millis(20));
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            assert!(lines.next().is_some_and(|line| line.starts_with("0 ")));
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
