//! Tests that connections without a command keep honest clients out only for a time, and that a
//! flood of connections does not keep the server from its other work.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe_testing::time::{slowed, wait_until};

use crate::running::{dialogue, Running};

/// Returns the answer to `mn`, or to the connection itself.
fn answer(server: &Running) -> String {
    let mut stream = server.connect();
    // A refused connection may be closed already.
    let _ = stream.write_all(b"mn\r\n");
    let mut bytes = [0; 64];
    let got = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..got]).into_owned()
}

#[test]
fn silent_connections_make_room_after_the_time_for_idle_ones() {
    glebe_testing::alone!();
    const CONNS: usize = 100;
    let server = Running::start(|settings| {
        settings.conns = CONNS;
        settings.idle = Some(Duration::from_secs(2));
    });
    let mut honest = server.connect();
    dialogue(&mut honest, "mn\n", "MN\n");
    let mut silent = Vec::new();
    let begin = Instant::now();
    // On a slow machine, the first are ended before the last are open.
    wait_until("the server is full", Duration::from_secs(20), || {
        dialogue(&mut honest, "mn\n", "MN\n");
        let mut stream = server.connect();
        // Half of them began a command.
        let bytes: &[u8] = if silent.len() % 2 == 0 { b"" } else { b"set k 0 0 100\r\nx" };
        let _ = stream.write_all(bytes);
        silent.push(stream);
        answer(&server).starts_with("ERROR Too many open")
    });
    assert!(silent.len() > CONNS / 2, "refused before it was full: {}", silent.len());
    let refusal = Instant::now();
    assert!(answer(&server).starts_with("ERROR Too many open") || begin.elapsed().as_secs() > 1);
    assert!(refusal.elapsed() < slowed(Duration::from_secs(1)), "a refusal is quick");
    wait_until("silent ones are ended", Duration::from_secs(30), || {
        dialogue(&mut honest, "mn\n", "MN\n");
        thread::sleep(Duration::from_millis(50));
        answer(&server) == "MN\r\n"
    });
    drop(silent);
}

#[test]
fn a_flood_of_connections_leaves_time_for_commands_and_the_end() {
    let server = Running::start(|settings| settings.conns = 4);
    let mut honest = server.connect();
    dialogue(&mut honest, "mn\n", "MN\n");
    let (is_over, opened, port) = (AtomicBool::new(false), AtomicU64::new(0), server.port);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            dialogue(&mut honest, "set k 0 0 1\nx\nget k\n", "STORED\nVALUE k 0 1\nx\nEND\n");
        }
        let end = Instant::now();
        drop(server);
        let took = end.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(took < slowed(Duration::from_secs(5)), "{took:?}");
    });
    assert!(opened.into_inner() > 100);
}
