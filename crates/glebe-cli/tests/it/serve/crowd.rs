//! Tests that 10,000 connections are served and further connections are refused.

use std::io::{Read, Write};

use rustix::process::{getrlimit, setrlimit, Resource};

use super::{dialogue, list, Serving};

const SERVED: usize = 10_000;
const OWN: u64 = 200;

#[test]
fn ten_thousand_connections_are_served_and_the_next_are_refused() {
    // Runs alone, because the limit of descriptors applies to the whole process.
    glebe_testing::alone!();
    let mut limit = getrlimit(Resource::Nofile);
    let needed = SERVED as u64 + OWN;
    if limit.maximum.is_some_and(|most| most < needed) {
        eprintln!("skipped: a process may have fewer than {needed} descriptors");
        return;
    }
    limit.current = limit.current.map(|current| current.max(needed));
    setrlimit(Resource::Nofile, limit).expect("within the hard limit");
    let serving = Serving::at_a_port(&["-c", &SERVED.to_string(), "-b", "4096", "-t", "2"]);
    let mut conns: Vec<_> = (0..SERVED).map(|_| serving.connect()).collect();
    for (nth, conn) in conns.iter_mut().enumerate() {
        write!(conn, "set k{} 0 0 5\r\n{nth:05}\r\n", nth % 100).expect("taken");
    }
    for conn in &mut conns {
        dialogue(conn, "", "STORED\n");
    }
    for _ in 0..20 {
        let mut refused = serving.connect();
        let mut answer = String::new();
        refused.read_to_string(&mut answer).expect("it is told, and closed");
        assert_eq!(answer, "ERROR Too many open connections\r\n");
    }
    let stats = list(&mut conns[SERVED - 1], "stats");
    // The count includes the listening socket, as in memcached.
    for row in ["STAT curr_connections 10001", "STAT rejected_connections 20"] {
        assert!(stats.iter().any(|other| other == row), "no {row} in {stats:?}");
    }
    conns.truncate(SERVED / 2);
    let mut last = std::time::Instant::now();
    while conns.len() < SERVED {
        let mut conn = serving.connect();
        let mut answer = [0; 2];
        // A refused connection may close before the write.
        if conn.write_all(b"mn\r\n").is_ok()
            && conn.read_exact(&mut answer).is_ok()
            && &answer == b"MN"
        {
            conns.push(conn);
            last = std::time::Instant::now();
        }
        assert!(last.elapsed() < super::patience(), "{} connections", conns.len());
    }
}
