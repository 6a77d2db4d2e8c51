//! [`Exchange`] is one request and its answer.
//!
//! States: the head is incomplete (`output` is empty); the answer is being sent; the answer was
//! sent, and the client's remaining bytes are dropped until it closes. The last state keeps the
//! kernel from resetting the connection before the client has read the answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use mio::net::TcpStream;

use super::plain::plain;
use super::HEAD_MAX;

/// Most header lines of a request.
const HEADERS: usize = 64;
/// Most bytes that are dropped after the answer.
const DROPPED_MAX: usize = 64 << 10;
const OPENMETRICS: &str = "application/openmetrics-text";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    Wait,
    Close,
}

pub(super) struct Exchange {
    stream: TcpStream,
    /// When the connection is closed.
    pub(super) end: Instant,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    dropped: usize,
}

impl Exchange {
    pub(super) fn new(stream: TcpStream, end: Instant) -> Self {
        Self { stream, end, input: Vec::new(), output: Vec::new(), sent: 0, dropped: 0 }
    }

    /// Reads and writes what the socket allows now.
    pub(super) fn advance(&mut self, text: &mut dyn FnMut() -> String) -> Then {
        match self.steps(text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Then::Wait,
            // An error concerns only this client.
            _ => Then::Close,
        }
    }

    fn steps(&mut self, text: &mut dyn FnMut() -> String) -> io::Result<()> {
        let mut buffer = [0; 4 << 10];
        while self.output.is_empty() {
            let len = read(&mut self.stream, &mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            self.input.extend_from_slice(&buffer[..len]);
            self.output = answer(&self.input, text).unwrap_or_default();
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Ok(()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.stream.shutdown(Shutdown::Write)?;
        while self.dropped < DROPPED_MAX {
            match read(&mut self.stream, &mut buffer)? {
                0 => return Ok(()),
                len => self.dropped += len,
            }
        }
        Ok(())
    }
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Returns the answer to a request, or `None` if its head is incomplete.
fn answer(input: &[u8], text: &mut dyn FnMut() -> String) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(&input[..input.len().min(HEAD_MAX)]);
    let (status, body) = match parsed {
        Ok(httparse::Status::Partial) if input.len() < HEAD_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => (
            "431 Request Header Fields Too Large",
            format!("a head has at most {HEAD_MAX} bytes and {HEADERS} fields\n"),
        ),
        Err(error) => ("400 Bad Request", format!("{error}\n")),
        Ok(httparse::Status::Complete(_)) => {
            return Some(of_request(&request, text));
        }
    };
    Some(reply(status, "text/plain; charset=utf-8", &body, true))
}

fn of_request(request: &httparse::Request<'_, '_>, text: &mut dyn FnMut() -> String) -> Vec<u8> {
    let method = request.method.unwrap_or_default();
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    let with_body = method != "HEAD";
    let said = |status, body: &str| reply(status, "text/plain; charset=utf-8", body, with_body);
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let accepts = |header: &httparse::Header<'_>| {
                header.name.eq_ignore_ascii_case("accept")
                    && String::from_utf8_lossy(header.value).contains(OPENMETRICS)
            };
            let text = text();
            match request.headers.iter().any(accepts) {
                true => {
                    let kind = format!("{OPENMETRICS}; version=1.0.0; charset=utf-8");
                    reply("200 OK", &kind, &text, with_body)
                }
                false => {
                    let kind = "text/plain; version=0.0.4; charset=utf-8";
                    reply("200 OK", kind, &plain(&text), with_body)
                }
            }
        }
        ("GET" | "HEAD", _) => said("404 Not Found", "metrics are at /metrics\n"),
        _ => said("405 Method Not Allowed\r\nAllow: GET, HEAD", "GET and HEAD are answered\n"),
    }
}

fn reply(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if with_body { body } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}
