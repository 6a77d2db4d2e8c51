//! Tests that requests of the binary protocol are refused.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::running::{dialogue, Running};

fn request(command: u8, body: usize, opaque: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, command, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&(body as u32).to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.resize(24 + body, b'\n');
    bytes
}

/// Asserts that the next answer refuses this command as unknown.
fn refused(stream: &mut TcpStream, command: u8, opaque: u32) {
    let mut head = [0; 24];
    stream.read_exact(&mut head).expect("a head");
    let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    assert_eq!(head[..8], [0x81, command, 0, 0, 0, 0, 0, 0x81]);
    assert_eq!(head[12..], [&opaque.to_be_bytes()[..], &[0; 8]].concat());
    let mut text = vec![0; body as usize];
    stream.read_exact(&mut text).expect("a body");
    assert_eq!(text, b"the binary protocol is not spoken here");
}

#[test]
fn each_request_is_refused_by_an_answer_of_its_protocol() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    // Version, a long set, a quiet get, no operation.
    let requests = [(0x0b, 0), (0x01, 300_000), (0x09, 3), (0x0a, 0)];
    for (command, body) in requests {
        stream.write_all(&request(command, body, 7)).expect("taken");
        refused(&mut stream, command, 7);
    }
    let all = requests.map(|(command, body)| request(command, body, 9)).concat();
    stream.write_all(&all).expect("taken");
    for (command, _) in requests {
        refused(&mut stream, command, 9);
    }
    for byte in request(0x0a, 2, 1) {
        stream.write_all(&[byte]).expect("taken");
    }
    refused(&mut stream, 0x0a, 1);
    dialogue(&mut stream, "mn\n", "MN\n");
}
