//! Tests statistics served to other processes: each form, and failing sockets.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Node, Source};
use glebe::error::OsError;
use glebe::extent::Extent;
use glebe::internal::sys::machine::numa;
use glebe::internal::{node_lines, with_node_members, with_nodes, NodeBytes, NodeTeller};
use glebe::reserve::served::{self, Form, Served};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::Bytes;
use glebe_testing::time::wait_until;
use glebe_testing::{openmetrics, Scratch};

fn reserve() -> Reserve {
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
    Reserve::options().build_on(contig).unwrap()
}

fn only(dir: &Path) -> Served {
    let found = served::list(dir).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn ask(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Tells that the second half of memory is on node 3.
fn halves(contig: &Contig) -> Result<Vec<(Extent, Node)>, OsError> {
    let half = contig.len().pages_down(glebe::page_size()).get() / 2;
    let on = |start, node| (Extent::new(start, half).unwrap(), Node(node));
    Ok(vec![on(0, 0), on(half, 3)])
}

#[test]
fn the_bytes_on_each_of_several_nodes_are_served() {
    let scratch = Scratch::new("nodes");
    let machine = || vec![Node(0), Node(1), Node(3)];
    let teller = NodeTeller { machine, pages: halves, here: || Some(Node(0)) };
    let options = Reserve::options().memory(Contig::options().source(Source::Plain));
    let reserve = with_nodes(options, teller).build(Bytes::mib(4)).unwrap();
    reserve.serve_stats_in(scratch.path()).unwrap();
    let one = only(scratch.path());
    let text = one.read(Form::Text).unwrap().unwrap();
    let lines: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("node_")?.split_once("_bytes"))
        .map(|(node, rest)| (node, rest.split_whitespace().next().unwrap()))
        .collect();
    assert_eq!(lines, [("0", "2097152"), ("1", "0"), ("3", "2097152")]);
    let json = one.read(Form::Json).unwrap().unwrap();
    let end = ", \"node_0_bytes\": 2097152, \"node_1_bytes\": 0, \"node_3_bytes\": 2097152 }";
    assert!(json.ends_with(end), "{json}");
    let families = openmetrics::parse(&one.read(Form::OpenMetrics).unwrap().unwrap()).unwrap();
    let family = families.iter().find(|of| of.name == "glebe_reserve_node_bytes").unwrap();
    let of = |sample: &openmetrics::Sample| (sample.labels["node"].clone(), sample.value);
    let samples: Vec<(String, f64)> = family.samples.iter().map(of).collect();
    let wanted = [("0", 2097152.0), ("1", 0.0), ("3", 2097152.0)];
    assert_eq!(samples, wanted.map(|(node, bytes)| (node.to_owned(), bytes)));
}

#[test]
fn each_form_is_served_until_the_reserve_is_dropped() {
    let scratch = Scratch::new("forms");
    let dir = scratch.path().join("made");
    let reserve = reserve();
    let path = reserve.serve_stats_in(&dir).unwrap().to_owned();
    assert_eq!(reserve.serve_stats_in(scratch.path()).unwrap(), path, "served once");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));

    let one = only(&dir);
    assert_eq!((one.path(), one.pid()), (&*path, std::process::id()));
    let (_, peer) = one.answer(Form::Json).unwrap().unwrap();
    assert_eq!((peer.pid, peer.uid), (one.pid(), fs::metadata(&dir).unwrap().uid()));
    let stats = reserve.stats();
    let nodes = NodeBytes::new().of(&reserve);
    let text = stats.to_string() + &node_lines(&nodes);
    assert_eq!(one.read(Form::Text).unwrap().unwrap(), text);
    assert_eq!(one.read(Form::Json).unwrap().unwrap(), with_node_members(stats.to_json(), &nodes));
    let labels = format!("{{pid=\"{}\",reserve=\"{}\"}}", one.pid(), one.number());
    let metrics = one.read(Form::OpenMetrics).unwrap().unwrap();
    assert!(metrics.contains(&format!("glebe_reserve_stored_bytes_total{labels} 0\n")));
    assert_eq!(metrics.matches("\nglebe_reserve_node_bytes{pid=").count(), nodes.len());
    let all = numa::with_memory();
    if nodes.is_empty() && all.len() > 1 {
        println!("skipped: the kernel does not tell the nodes");
    } else if all.len() > 1 {
        let told: Vec<_> = nodes.iter().map(|(node, _)| *node).collect();
        assert_eq!(told, all);
        let sum: u64 = nodes.iter().map(|(_, bytes)| bytes.get()).sum();
        assert_eq!(sum, reserve.len().bytes(glebe::page_size()).get());
    } else {
        assert_eq!(nodes, []);
    }

    let other = self::reserve();
    other.serve_stats_in(&dir).unwrap();
    assert_eq!(served::list(&dir).unwrap().len(), 2);
    drop(reserve);
    assert_eq!(one.read(Form::Json).unwrap(), None);
    assert_ne!(only(&dir), one);
    drop(other);
    assert!(served::list(&dir).unwrap().is_empty());
}

#[test]
fn who_asks_wrongly_or_leaves_does_not_end_the_service() {
    let scratch = Scratch::new("askers");
    let reserve = reserve();
    let path = reserve.serve_stats_in(scratch.path()).unwrap();
    for request in [&b"xml\n"[..], b"json", b"json\njson\n", &[255; 32]] {
        let answer = ask(path, request);
        assert!(answer.starts_with("glebe-stats/1 error "), "{answer}");
    }
    for _ in 0..10 {
        drop(UnixStream::connect(path).unwrap());
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"openmetrics\n").unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    assert!(only(scratch.path()).read(Form::Json).unwrap().is_some());
}

#[test]
fn a_socket_left_behind_is_passed_over_and_its_name_used_again() {
    glebe_testing::alone!();
    let scratch = Scratch::new("stale");
    // Leaves a socket under each number that the next reserve is likely to get.
    for number in 0..200 {
        let name = format!("{}.{number}.sock", std::process::id());
        drop(UnixListener::bind(scratch.path().join(name)).unwrap());
    }
    fs::write(scratch.path().join("1.txt"), "").unwrap();
    fs::write(scratch.path().join("x.1.sock"), "").unwrap();
    let left = served::list(scratch.path()).unwrap();
    assert_eq!(left.len(), 200);
    assert!(left.iter().all(|served| served.read(Form::Text).unwrap().is_none()));
    let reserve = reserve();
    let path = reserve.serve_stats_in(scratch.path()).unwrap();
    let found = served::list(scratch.path()).unwrap();
    assert_eq!(found.len(), 200, "a name that was left is used again");
    let live: Vec<_> = found.iter().filter(|s| s.read(Form::Text).unwrap().is_some()).collect();
    assert!(live.len() == 1 && live[0].path() == path);
    assert!(served::list(&scratch.path().join("missing")).unwrap().is_empty());
}

#[test]
fn a_directory_that_others_enter_is_refused_and_the_reserve_works_on() {
    let scratch = Scratch::new("shared");
    let reserve = reserve();
    for mode in [0o755, 0o710, 0o701] {
        fs::set_permissions(scratch.path(), Permissions::from_mode(mode)).unwrap();
        match reserve.serve_stats_in(scratch.path()) {
            Err(ReserveError::Os(error)) => {
                let said = error.to_string();
                assert!(said.ends_with(&format!("mode 40{mode:o}")), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = reserve.serve_stats_in(&file);
    let is_denied = |error: &OsError| error.kind() == ErrorKind::PermissionDenied;
    assert!(matches!(&refused, Err(ReserveError::Os(error)) if is_denied(error)), "{refused:?}");
    let deep = scratch.path().join("no/parent");
    assert!(matches!(reserve.serve_stats_in(&deep), Err(ReserveError::Os(_))));
    let long = scratch.path().join("x".repeat(100));
    assert!(
        matches!(reserve.serve_stats_in(&long), Err(ReserveError::Os(_))),
        "longer than an address"
    );
    reserve.stats().check().unwrap();
    reserve.serve_stats_in(scratch.path()).unwrap();
}

#[test]
fn what_is_no_answer_is_an_error() {
    let scratch = Scratch::new("liars");
    let path = scratch.path().join(format!("{}.9999.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let lies: [&[u8]; 8] = [
        b"",
        b"hello\n",
        b"glebe-stats/2 ok 2\n{}",
        b"glebe-stats/1 ok two\n{}",
        b"glebe-stats/1 ok 3\n{}",
        b"glebe-stats/1 ok 99999999999\n{}",
        b"glebe-stats/1 error 2\nno",
        b"glebe-stats/1 ok 5\n\x1b[2J.",
    ];
    thread::scope(|scope| {
        scope.spawn(|| {
            for lie in lies {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 32];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(lie).unwrap();
            }
            // The last request gets no answer.
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        let liar = only(scratch.path());
        for _ in 0..=lies.len() {
            let error = liar.read(Form::Json).unwrap_err();
            assert!(error.to_string().contains("9999.sock"), "{error}");
        }
    });
}

#[test]
fn the_thread_ends_with_the_reserve_though_nobody_asks_again() {
    let scratch = Scratch::new("thread");
    let reserve = reserve();
    let path = reserve.serve_stats_in(scratch.path()).unwrap().display().to_string();
    // The kernel lists a socket while it is open.
    let is_open = || fs::read_to_string("/proc/net/unix").map(|all| all.contains(&path));
    if !is_open().is_ok_and(|open| open) {
        println!("skipped: /proc/net/unix does not show sockets");
        return;
    }
    drop(reserve);
    wait_until("the thread ends", Duration::from_secs(30), || !is_open().unwrap());
}
