//! Measures the memory of idle connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use glebe_testing::time::wait_until;

use crate::running::{dialogue, exactly, resident, Running};

#[test]
fn a_thousand_idle_connections_cost_little_and_more_are_refused() {
    glebe_testing::alone!();
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
    wait_until("a connection is served again", Duration::from_secs(20), || {
        let mut again = server.connect();
        let mut byte = [0];
        again.write_all(b"mn\r\n").is_ok() && again.read(&mut byte).is_ok() && byte == *b"M"
    });
}
