//! What idle connections cost: a measure of the whole process, so a program of its own.

mod running;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use running::{dialogue, exactly, Running};

#[test]
fn a_thousand_idle_connections_cost_little_and_more_are_refused() {
    let server = Running::start(|settings| settings.conns = 1000);
    let mut first = server.connect();
    dialogue(&mut first, "mn\n", "MN\n");
    let before = resident();
    let mut others: Vec<TcpStream> = (1..1000).map(|_| server.connect()).collect();
    for other in &mut others {
        dialogue(other, "mg none\n", "EN\n");
    }
    let cost = resident().saturating_sub(before);
    assert!(cost < 20 << 20, "{cost} bytes");
    let mut refused = server.connect();
    exactly(&mut refused, b"ERROR Too many open connections\r\n");
    drop(others);
    let begin = Instant::now();
    loop {
        let mut again = server.connect();
        let mut byte = [0];
        if again.write_all(b"mn\r\n").is_ok() && again.read(&mut byte).is_ok() && byte == *b"M" {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}
