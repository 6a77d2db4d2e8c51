//! [`Peer`] is memcached at a free port, if it is installed.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glebe_testing::time::{slowed, wait_until};

pub struct Peer {
    child: Child,
    port: u16,
}

impl Peer {
    /// Starts memcached. Prints why not, and returns `None`, if it is not installed.
    pub fn start(options: &[&str]) -> Option<Self> {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = Command::new("memcached");
        // As root, memcached wants the name of another user, or this one.
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-u", "root"]).args(options);
        let Ok(child) = command.stderr(Stdio::null()).spawn() else {
            eprintln!("skipped: memcached is not installed");
            return None;
        };
        let peer = Self { child, port };
        wait_until("memcached", slowed(Duration::from_secs(20)), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(peer)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect");
        stream.set_read_timeout(Some(slowed(Duration::from_secs(20)))).expect("a timeout");
        stream
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
