//! Tests the memory of idle connections, and which connections `idle_timeout` ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use glebe_testing::time::wait_until;
use glebe_testing::Scratch;
use rustix::process::{getrlimit, setrlimit, Resource};

use crate::running::{dialogue, exactly, resident, stat, Running};

const DESCRIPTORS: u64 = 2300;

#[test]
fn a_thousand_idle_connections_cost_little_and_more_are_refused() {
    glebe_testing::alone!();
    // Both ends of each connection are this process's.
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    limit.current = limit.current.map(|current| current.max(wanted));
    setrlimit(Resource::Nofile, limit).expect("within the hard limit");
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

/// Moves the clock by 400 seconds, of the 600 that a connection may be idle.
fn pass(honest: &mut TcpStream) {
    dialogue(honest, "debugtime 400\n", "OK\n");
}

#[test]
fn connections_in_the_middle_of_a_transfer_are_not_idle() {
    const LEN: usize = 1_000_000;
    const PART: usize = 200_000;
    let scratch = Scratch::new("transfer");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| {
        settings.threads = 1;
        settings.memory = 64 << 20;
        settings.idle = Some(Duration::from_secs(600));
        settings.debug_time = true;
        settings.unix = Some((path.clone(), 0o700));
    });
    let mut honest = server.connect();
    let value = "x".repeat(LEN);
    dialogue(&mut honest, &format!("set k 0 0 {LEN}\n{value}\n"), "STORED\n");
    // The kernel buffers little for a Unix socket.
    let mut reader = UnixStream::connect(&path).expect("connect");
    reader.write_all(b"get k\r\n").expect("taken");
    let mut sender = server.connect();
    sender.write_all(format!("set k2 0 0 {LEN}\r\n").as_bytes()).expect("taken");
    // One connection stalls in a value, and one sends a line byte by byte.
    let mut stalled = [server.connect(), server.connect()];
    stalled[0].write_all(b"set k3 0 0 100\r\nx").expect("taken");
    stalled[1].write_all(b"g").expect("taken");
    wait_until("all are served", Duration::from_secs(20), || {
        let is_sending = stat(&mut honest, "response_obj_bytes") > 0;
        is_sending && stat(&mut honest, "curr_connections") == 7
    });
    let before = ["bytes_read", "bytes_written"].map(|name| stat(&mut honest, name));
    pass(&mut honest);
    stalled[1].write_all(b"e").expect("taken");
    sender.write_all(&value.as_bytes()[..PART]).expect("taken");
    let head = format!("VALUE k 0 {LEN}\r\n{}", &value[..PART]);
    exactly(&mut reader, head.as_bytes());
    let most = PART as u64 / 2;
    wait_until("parts are through", Duration::from_secs(20), || {
        stat(&mut honest, "bytes_read") > before[0] + most
            && stat(&mut honest, "bytes_written") > before[1] + most
    });
    pass(&mut honest);
    wait_until("the others are ended", Duration::from_secs(20), || {
        stat(&mut honest, "idle_kicks") >= 2
    });
    sender.write_all(&value.as_bytes()[PART..]).expect("taken");
    dialogue(&mut sender, "\n", "STORED\n");
    exactly(&mut reader, format!("{}\r\nEND\r\n", &value[PART..]).as_bytes());
    assert_eq!(stat(&mut honest, "idle_kicks"), 2);
}
