//! [`Running`] is a server in this process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use glebe_serve::server::{Failure, Server, Settings};
use glebe_testing::time::slowed;

pub struct Running {
    pub port: u16,
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Running {
    pub fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            threads: 2,
            memory: 16 << 20,
            serve_stats: false,
            ..Settings::default()
        };
        change(&mut settings);
        Self::of(Server::start(settings).expect("a server"))
    }

    pub fn of(server: Server) -> Self {
        let (port, stop) = (server.port().expect("TCP"), server.stopper());
        let thread = Some(thread::spawn(move || server.run()));
        Self { port, stop: Box::new(stop), thread }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect");
        stream.set_read_timeout(Some(slowed(Duration::from_secs(20)))).expect("a timeout");
        stream.set_nodelay(true).expect("nodelay");
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.stop)();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(Ok(())))) || thread::panicking());
    }
}

pub fn exactly(stream: &mut impl Read, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    let mut len = 0;
    while len < got.len() {
        match stream.read(&mut got[len..]) {
            Ok(more) if more > 0 => len += more,
            end => panic!("{end:?} after {} of {}", short(&got[..len]), short(expected)),
        }
    }
    assert!(got == expected, "{} is not {}", short(&got), short(expected));
}

pub fn short(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(400)].escape_ascii().to_string()
}

pub fn dialogue(stream: &mut (impl Read + Write), says: &str, hears: &str) {
    let (says, hears) = (says.replace('\n', "\r\n"), hears.replace('\n', "\r\n"));
    stream.write_all(says.as_bytes()).expect("taken");
    exactly(stream, hears.as_bytes());
}

/// Returns a number of `stats`.
pub fn stat(stream: &mut (impl Read + Write), name: &str) -> u64 {
    stream.write_all(b"stats\r\n").expect("taken");
    let mut text = String::new();
    while !text.ends_with("END\r\n") {
        let mut part = [0; 4096];
        let got = stream.read(&mut part).expect("an answer");
        assert!(got > 0, "{text}");
        text.push_str(std::str::from_utf8(&part[..got]).expect("text"));
    }
    let row = text.lines().find_map(|row| row.strip_prefix(&format!("STAT {name} ")));
    row.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

/// Returns bytes without a short period.
pub fn value(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(2_654_435_761 + seed) >> 9) as u8).collect()
}

/// Returns the resident bytes of this process without hugetlb pages.
pub fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * glebe::page_size().bytes().as_usize()
}

/// Returns the resident bytes of this process with hugetlb pages.
pub fn in_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let kib = |name: &str| {
        let row = text.lines().find_map(|row| row.strip_prefix(name)).expect(name);
        row.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    ["Rss:", "Private_Hugetlb:", "Shared_Hugetlb:"].map(kib).iter().sum::<u64>() << 10
}

/// Sends some bytes over connections every 50 ms, until it is dropped.
pub struct Feeding(Arc<AtomicBool>);

impl Feeding {
    pub fn start(mut streams: Vec<TcpStream>, len: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // The server may have closed some.
                streams.iter_mut().for_each(|stream| _ = stream.write(&vec![b'x'; len]));
                thread::sleep(Duration::from_millis(50));
            }
        });
        Self(is_over)
    }
}

impl Drop for Feeding {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
