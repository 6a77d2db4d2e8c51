//! Tests the interface to a service manager: handed-over sockets, readiness, signals.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use super::{dialogue, glebe, list, patience, Serving};

/// Returns a command that passes `socket` to the server as systemd passes a listening socket.
fn handing_over(socket: OwnedFd, options: &str) -> Command {
    handing_over_to("$$", socket, options)
}

fn handing_over_to(pid: &str, socket: OwnedFd, options: &str) -> Command {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_glebe");
    let exec = format!("exec {program} serve --memcached --no-stats {options} 3<&0 </dev/null");
    command.args(["-c", &format!("export LISTEN_FDS=1 LISTEN_PID={pid}; {exec}")]);
    command.stdin(Stdio::from(socket));
    command
}

#[test]
fn a_socket_that_is_handed_over_is_served_and_no_other() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    // This connection waits in the backlog until the server starts.
    let mut early = TcpStream::connect(address).expect("connect");
    early.set_read_timeout(Some(patience())).expect("a timeout");
    let scratch = Scratch::new("notify");
    let notify = scratch.path().join("notify");
    let told = UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(patience())).expect("a timeout");
    let mut command = handing_over(listener.into(), "-p 1");
    let mut serving = Serving::start(command.env("NOTIFY_SOCKET", &notify), 2);
    let mut text = [0; 64];
    let len = told.recv(&mut text).expect("readiness is told");
    assert!(text[..len].starts_with(b"READY=1"));
    assert_eq!(serving.said[1], format!("listening at tcp:{address}"));
    dialogue(&mut early, "set k 0 0 1\nx\n", "STORED\n");
    dialogue(&mut serving.connect(), "get k\n", "VALUE k 0 1\nx\nEND\n");
    let listening: Vec<String> = list(&mut early, "stats conns")
        .into_iter()
        .filter(|row| row.contains("conn_listening"))
        .collect();
    assert_eq!(listening.len(), 1, "{listening:?}");
    serving.signal("TERM");
    let len = told.recv(&mut text).expect("the end is told");
    assert_eq!(&text[..len], b"STOPPING=1\n");
    serving.ends_well();
}

#[test]
fn descriptors_for_another_process_are_left_alone() {
    for pid in ["1", ""] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving =
            Serving::start(&mut handing_over_to(pid, listener.into(), "-l 127.0.0.1:0"), 2);
        assert!(serving.said[1].starts_with("listening at tcp:127.0.0.1:"), "{:?}", serving.said);
        assert_ne!(serving.said[1], format!("listening at tcp:{address}"));
    }
}

#[test]
fn a_unix_socket_that_is_handed_over_is_left_where_it_is() {
    let scratch = Scratch::new("handed");
    let path = scratch.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let mut serving = Serving::start(&mut handing_over(listener.into(), ""), 2);
    let mut stream = UnixStream::connect(&path).expect("connect");
    dialogue(&mut stream, "mn\n", "MN\n");
    serving.signal("TERM");
    serving.ends_well();
    assert!(path.exists(), "it is the service manager's");
}

#[test]
fn a_socket_of_another_kind_that_is_handed_over_is_refused() {
    let udp = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
    let ended = handing_over(udp.into(), "").output().expect("the program starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("socket 0 of the service manager is neither TCP nor"), "{said}");
}

#[test]
fn who_is_let_in_finds_the_number_of_the_process_and_is_answered() {
    let scratch = Scratch::new("let-in");
    let (socket, pid) = (scratch.path().join("socket"), scratch.path().join("pid"));
    let mut command = glebe();
    command.args(["serve", "--memcached", "--no-stats"]);
    command.arg("-s").arg(&socket).arg("-P").arg(&pid);
    let mut serving = Serving::start(&mut command, 0);
    let mut stream = None;
    wait_until("it listens", patience(), || {
        stream = UnixStream::connect(&socket).ok();
        stream.is_some()
    });
    let written = fs::read_to_string(&pid).expect("the file is there");
    assert_eq!(written.trim_end(), serving.child.id().to_string());
    dialogue(&mut stream.expect("a connection"), "mn\n", "MN\n");
    // A second server does not touch socket and pid file.
    let refused = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(": in use"), "{said}");
    assert_eq!(fs::read_to_string(&pid).expect("the file is there"), written);
    dialogue(&mut UnixStream::connect(&socket).expect("connect"), "mn\n", "MN\n");
    serving.signal("TERM");
    serving.ends_well();
}

#[test]
fn a_hang_up_loses_nothing_and_a_termination_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let scratch = Scratch::new(&format!("signal-{signal}"));
        let (socket, pid) = (scratch.path().join("socket"), scratch.path().join("pid"));
        let mut command = glebe();
        command.args(["serve", "--memcached", "--no-stats"]);
        command.arg("-s").arg(&socket).arg("-P").arg(&pid);
        let mut serving = Serving::start(&mut command, 2);
        let mut stream = UnixStream::connect(&socket).expect("connect");
        stream.set_read_timeout(Some(patience())).expect("a timeout");
        dialogue(&mut stream, "set k 0 0 1\nx\n", "STORED\n");
        for _ in 0..3 {
            serving.signal("HUP");
            dialogue(&mut stream, "get k\n", "VALUE k 0 1\nx\nEND\n");
        }
        dialogue(&mut stream, "set k 0 0 100\nx\n", "");
        assert!(pid.exists());
        serving.signal(signal);
        serving.ends_well();
        assert!(!socket.exists() && !pid.exists());
        assert_eq!(fs::read_dir(scratch.path()).expect("a folder").count(), 0);
    }
}

#[test]
fn a_failed_start_leaves_nothing() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("failed-start"));
    let (run, socket) = (scratch.path().join("run"), scratch.path().join("socket"));
    fs::create_dir_all(run.join("glebe")).expect("a folder");
    fs::set_permissions(run.join("glebe"), PermissionsExt::from_mode(0o700)).expect("its mode");
    for more in [
        &["-m", "8", "-P", "/nonexistent/pid"][..],
        &["-m", "64", "--leases", "--lease-socket", "/nonexistent/leases"],
        &["-m", "8", "-s", "/nonexistent/socket"],
    ] {
        let mut command = glebe();
        command.args(["serve", "-s"]).arg(&socket).args(more).env("XDG_RUNTIME_DIR", &run);
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let left: Vec<_> = fs::read_dir(run.join("glebe")).expect("a folder").collect();
        assert!(left.is_empty() && !socket.exists(), "{more:?}: {left:?}");
    }
}

#[test]
fn a_server_needs_nobody_to_read_its_output() {
    let scratch = Scratch::new("unread");
    let socket = scratch.path().join("socket");
    let (reader, writer) = UnixStream::pair().expect("sockets");
    drop(reader);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" serve --no-stats -m 16 -s \"$1\" >&0 </dev/null"]);
    command.arg(glebe().get_program()).arg(&socket).stdin(OwnedFd::from(writer));
    let mut serving = Serving::start(&mut command, 0);
    let mut stream = None;
    wait_until("it listens", patience(), || {
        stream = UnixStream::connect(&socket).ok();
        stream.is_some()
    });
    let mut stream = stream.expect("a connection");
    stream.set_read_timeout(Some(patience())).expect("a timeout");
    dialogue(&mut stream, "mn\n", "MN\n");
    serving.signal("TERM");
    serving.ends_well();
    assert!(!socket.exists());
}

#[test]
fn a_pid_file_replaces_a_link_and_no_folder() {
    let scratch = Scratch::new("pid-file");
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (socket, folder, link, other) = (at("cache"), at("folder"), at("link"), at("other"));
    fs::create_dir(&folder).expect("a folder");
    fs::write(&other, "kept").expect("a file");
    std::os::unix::fs::symlink(&other, &link).expect("a link");
    let options = ["serve", "--no-stats", "-m", "16", "-s", &socket, "-P"];
    let refused = glebe().args(options).arg(&folder).output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("File exists"), "{said}");
    assert!(std::path::Path::new(&folder).is_dir());
    let mut server = Serving::start(glebe().args(options).arg(&link), 2);
    assert_eq!(fs::read_to_string(&link).expect("a file").trim(), server.pid().to_string());
    assert_eq!(fs::read_to_string(&other).expect("a file"), "kept");
    server.signal("TERM");
    server.ends_well();
}
