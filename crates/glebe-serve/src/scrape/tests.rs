//! Tests that every request gets its answer, whatever other clients do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use glebe_testing::time::slowed;

use super::*;

const TEXT: &str = "# TYPE a counter\n# HELP a b\na_total 1\n# EOF\n";

struct Started {
    at: SocketAddr,
    made: Arc<AtomicU64>,
    _scrapes: Scrapes,
}

/// Starts an answerer whose text has a line of `len` bytes, if that is not 0.
fn start(len: usize) -> Started {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let made = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&made);
    let render = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        match len {
            0 => TEXT.to_owned(),
            _ => format!("# TYPE long gauge\n# HELP long {}\n{TEXT}", "l".repeat(len)),
        }
    };
    Started { at, made, _scrapes: Scrapes::start(listener, render).unwrap() }
}

impl Started {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(slowed(PATIENCE * 2))).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        rest(&mut stream)
    }
}

fn rest(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns true if the server closed the connection without an answer.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(len) => len == 0,
        // A close before the client's bytes were read resets the connection.
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_client_gets_the_form_that_it_accepts() {
    let started = start(0);
    let plain = started.ask(GET);
    let (head, body) = plain.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert_eq!(body, "# TYPE a_total counter\n# HELP a_total b\na_total 1\n");
    let accepts = "aCCept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
    let open = started.ask(&GET.replace("\r\n\r\n", &format!("\r\n{accepts}")));
    let (head, body) = open.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert_eq!(body, TEXT);
    assert!(started.ask("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
}

#[test]
fn other_requests_are_refused_with_their_reason() {
    let started = start(0);
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(HEAD_MAX));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(100));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 "),
        ("GET /metrics2 HTTP/1.1\r\n\r\n", "404 "),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 "),
        ("get key\r\n", "400 "),
        ("\0\0\0\0", "400 "),
        ("GET /metrics HTTP/9.9\r\n\r\n", "400 "),
        (&long, "431 "),
        (&many, "431 "),
    ] {
        let answer = started.ask(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:.40}: {answer}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
    assert_eq!(started.made.load(Ordering::Relaxed), 0, "no text was made");
}

#[test]
fn a_request_may_come_in_pieces() {
    let started = start(0);
    let mut stream = started.connect();
    for byte in GET.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(rest(&mut stream).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn clients_that_say_nothing_make_room_for_others() {
    let (started, begin) = (start(0), Instant::now());
    let mut silent: Vec<TcpStream> = (0..4 * CONNS).map(|_| started.connect()).collect();
    for stream in &mut silent[2 * CONNS..] {
        // An error is a connection that was already replaced.
        let _ = stream.write_all(b"GET /met");
    }
    assert!(started.ask(GET).starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(silent[..2 * CONNS].iter_mut().all(is_closed), "the oldest are replaced");
    assert!(begin.elapsed() < PATIENCE, "an answer waits for no other client");
    let begin = Instant::now();
    assert!(silent.iter_mut().all(is_closed), "all end");
    assert!(begin.elapsed() < slowed(PATIENCE * 2), "{:?}", begin.elapsed());
}

#[test]
fn a_client_that_reads_nothing_is_closed_and_holds_nobody() {
    // The text is longer than the buffers of a socket. Many lines would take seconds to convert.
    let started = start(10_000_000);
    let mut deaf = started.connect();
    deaf.write_all(GET.as_bytes()).unwrap();
    let mut other = started.connect();
    other.write_all(GET.as_bytes()).unwrap();
    let answer = rest(&mut other);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    thread::sleep(PATIENCE + slowed(Duration::from_secs(2)));
    let mut got = Vec::new();
    // A reset is an error.
    let _ = deaf.read_to_end(&mut got);
    assert!(got.len() < answer.len(), "{} of {} bytes", got.len(), answer.len());
}

#[test]
fn many_requests_make_few_texts() {
    let started = start(0);
    let begin = Instant::now();
    for _ in 0..50 {
        assert!(started.ask(GET).contains("a_total 1"));
    }
    let most = begin.elapsed().as_millis() as u64 / FRESH.as_millis() as u64 + 1;
    let made = started.made.load(Ordering::Relaxed);
    assert!((1..=most).contains(&made), "{made} of at most {most}");
}

#[test]
fn the_drop_ends_the_answers() {
    let started = start(0);
    let at = started.at;
    let mut open = started.connect();
    drop(started);
    assert!(is_closed(&mut open));
    assert!(TcpStream::connect(at).is_err());
}
