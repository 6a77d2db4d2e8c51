//! Mooncake's own package and master, if `GLEBE_TEST_MOONCAKE_PYTHON` names a Python that has it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use glebe_testing::time::{storm, wait_until};
use serde_json::Value;

use super::lending::{Lending, PATIENCE};

/// Puts values and reads them again, in a process of its own.
const CLIENT: &str = include_str!("client.py");

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("GLEBE_TEST_MOONCAKE_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!("skipped: GLEBE_TEST_MOONCAKE_PYTHON names no Python with Mooncake's package");
    }
    python
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

/// Starts the master in the folder of `python`.
fn master(python: &Path, [port, metrics]: [u16; 2]) -> Ended {
    let mut command = Command::new(python.with_file_name("mooncake_master"));
    command.args(["--rpc_address", "127.0.0.1", "--rpc_port", &port.to_string()]);
    command.args(["--metrics_host", "127.0.0.1", "--metrics_port", &metrics.to_string()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let master = Ended(child.expect("the master starts"));
    let address = ("127.0.0.1", port);
    wait_until("the master listens", PATIENCE, || std::net::TcpStream::connect(address).is_ok());
    master
}

struct Client {
    _child: Ended,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(python: &Path, port: u16) -> Self {
        let mut command = Command::new(python);
        command.args(["-c", CLIENT, &format!("127.0.0.1:{port}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("python starts");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = BufReader::new(from.expect("a pipe"));
        Self { _child: Ended(child), to: to.expect("a pipe"), from }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").expect("the client lives");
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
    }

    fn ask(&mut self, command: &str) -> Value {
        self.tell(command);
        self.answer()
    }
}

#[test]
fn the_real_store_never_reads_wrong_bytes() {
    let Some(python) = python() else { return };
    let ports = free_ports();
    let beside = master(&python, ports);
    let port = ports[0];
    let Some(lending) = Lending::real(&python, port) else { return };
    lending.wait("all is lent", |it| it.lent() == 4);
    let mut writer = Client::start(&python, port);
    let mut readers = [(); 2].map(|()| Client::start(&python, port));
    assert!(writer.ask("put")["stored"].as_u64().is_some_and(|stored| stored > 50));
    readers.iter_mut().for_each(|reader| reader.tell("read"));
    let until = std::time::Instant::now() + storm(Duration::from_secs(12));
    let mut recalls = 0;
    while std::time::Instant::now() < until || recalls == 0 {
        // The program fills its memory with a value that no reader may see.
        let fill = "python3 -c 'import os,mmap; n=int(os.environ[\"GLEBE_LEASE_BYTES\"]); \
            m=mmap.mmap(int(os.environ[\"GLEBE_LEASE_FD\"]), n); m[:]=b\"\\xee\"*n'";
        lending.leased("40M", fill);
        recalls += 1;
        lending.wait("all is lent", |it| it.lent() == 4);
        writer.ask("put");
        std::thread::sleep(Duration::from_millis(300));
    }
    for reader in &mut readers {
        let read = reader.ask("stop");
        println!("{recalls} recalls of several segments; a reader: {read}");
        assert_eq!(read["bad"], 0, "{read}");
        assert!(read["hits"].as_u64().is_some_and(|hits| hits > 0), "{read}");
    }
    let shown = lending.status().expect("a lender");
    assert_eq!(shown.number("killed"), 0);
    let [last, max] = ["recall_p50_ns", "recall_max_ns"].map(|it| shown.number(it));
    println!("{} recalls: p50 {last} ns, at most {max} ns", shown.number("recalled"));
    // Without a master, only the agent's end frees the memory.
    drop(beside);
    lending.leased("40M", "true");
    lending.wait("the agent is killed", |it| it.number("killed") == 1 && it.lent() == 0);
    let _beside = master(&python, ports);
    lending.wait("the new master has segments", |it| it.lent() == 4);
    assert!(writer.ask("put")["stored"].as_u64().is_some());
}
