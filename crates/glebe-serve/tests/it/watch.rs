//! Tests the command `watch`: its lines, memcached's lines, and watchers that do not read.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use glebe_serve::server::{ask_control, Server, Settings};
use glebe_testing::time::{slowed, wait_until};
use glebe_testing::Scratch;

use crate::peer::Peer;
use crate::running::{dialogue, Running};

/// Commands of all kinds that store, and their answers.
const MUTATIONS: (&str, &str) = (
    "set foo 0 0 3\nabc\nadd foo 0 0 1\nx\nset a%b 5 100 1\nx\nms m 2\nhi\nset n 0 0 1\n5\n\
     append n 0 0 1\n5\ncas n 0 0 1 999999\n5\ncas none 0 0 1 1\n5\nreplace zz 0 0 1\nx\n\
     ms n 1 C999999\n5\nms n 1 C999999 MR\n5\nms n 1 C999999 MA\n5\nms n 1 MP\n5\n",
    "STORED\nNOT_STORED\nSTORED\nHD\nSTORED\nSTORED\nEXISTS\nNOT_FOUND\nNOT_STORED\n\
     EX\nEX\nEX\nHD\n",
);

struct Watching(BufReader<TcpStream>);

impl Watching {
    fn start(mut stream: TcpStream, topics: &str) -> Self {
        dialogue(&mut stream, &format!("watch {topics}\n"), "OK\n");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line
    }

    /// Returns a line without time, number and connection.
    fn what(&mut self) -> String {
        let line = self.line();
        let mut words = line.split_whitespace();
        assert!(words.next().is_some_and(|word| word.starts_with("ts=")), "{line}");
        assert!(words.next().is_some_and(|word| word.starts_with("gid=")), "{line}");
        let fields: Vec<&str> = words.filter(|word| !word.starts_with("cfd=")).collect();
        fields.join(" ")
    }
}

#[test]
fn stores_have_the_lines_that_memcached_writes() {
    let server = Running::start(|_| {});
    let mut lines = Watching::start(server.connect(), "mutations");
    dialogue(&mut server.connect(), MUTATIONS.0, MUTATIONS.1);
    let own: Vec<String> = (0..13).map(|_| lines.what()).collect();
    let item = |key: &str, status: &str, cmd: &str, ttl: u32, size: u32| {
        format!("type=item_store key={key} status={status} cmd={cmd} ttl={ttl} clsid=1 size={size}")
    };
    assert_eq!(own[0], item("foo", "stored", "set", 0, 3));
    assert_eq!(own[2], item("a%25b", "stored", "set", 100, 1));
    assert_eq!(own[5], item("n", "stored", "append", 0, 2));
    if let Some(peer) = Peer::start(&[]) {
        let mut lines = Watching::start(peer.connect(), "mutations");
        dialogue(&mut peer.connect(), MUTATIONS.0, MUTATIONS.1);
        for own in own {
            assert_eq!(own, lines.what());
        }
    }
}

/// Commands whose value is too long, and the name that a watcher sees.
const TOO_LARGE: &[(&str, &str)] = &[
    ("set k 0 0 LEN", "set"),
    ("add k 0 0 LEN", "add"),
    ("replace k 0 0 LEN", "replace"),
    ("append k 0 0 LEN", "append"),
    ("prepend k 0 0 LEN noreply", "prepend"),
    ("cas k 0 0 LEN 1", "cas"),
    ("ms k LEN", "set"),
    ("ms k LEN ME", "add"),
    ("ms k LEN MA", "append"),
    ("ms k LEN C1", "cas"),
];

#[test]
fn a_value_that_is_too_long_is_told_with_its_command() {
    const LEN: usize = (1 << 20) + 1;
    let value = "x".repeat(LEN);
    let commands = |mut client: TcpStream| {
        for (command, _) in TOO_LARGE {
            let no_answer = command.ends_with("noreply");
            let answer = "SERVER_ERROR object too large for cache\n";
            let command = command.replace("LEN", &LEN.to_string());
            let hears = if no_answer { "" } else { answer };
            dialogue(&mut client, &format!("{command}\n{value}\n"), hears);
        }
    };
    let server = Running::start(|_| {});
    let mut lines = Watching::start(server.connect(), "mutations");
    commands(server.connect());
    for (_, cmd) in TOO_LARGE {
        let rest = format!("ttl=0 clsid=2 size={LEN}");
        let own = format!("type=item_store key=k status=too_large cmd={cmd} {rest}");
        assert_eq!(lines.what(), own);
    }
    if let Some(peer) = Peer::start(&[]) {
        let mut lines = Watching::start(peer.connect(), "mutations");
        commands(peer.connect());
        for (_, cmd) in TOO_LARGE {
            // Its class, descriptor and size are others' values.
            let theirs = format!("type=item_store key=k status=too_large cmd={cmd} ttl=0 ");
            let line = lines.what();
            assert!(line.starts_with(&theirs), "{line}");
        }
    }
}

#[test]
fn reads_deletions_and_connections_are_told() {
    let server = Running::start(|_| {});
    let mut lines = Watching::start(server.connect(), "connevents fetchers deletions");
    let mut client = server.connect();
    let from = client.local_addr().expect("an address");
    let says = "set k 0 0 2\nhi\nget k none\nmg k v\ndelete k\n";
    dialogue(&mut client, says, "STORED\nVALUE k 0 2\nhi\nEND\nVA 2\nhi\nDELETED\n");
    // A value that becomes stale, or is not there, is no deletion.
    let says = "set k 0 0 3\nold\nmd k I\nmd k\nmd k\nquit\n";
    dialogue(&mut client, says, "STORED\nHD\nHD\nNF\n");
    let remote = format!("rip=127.0.0.1 rport={} transport=tcp", from.port());
    for what in [
        format!("type=conn_new {remote}"),
        "type=item_get key=k status=found clsid=1 size=2".to_owned(),
        "type=item_get key=none status=not_found clsid=0 size=0".to_owned(),
        "type=item_get key=k status=found clsid=1 size=2".to_owned(),
        "type=deleted key=k cmd=delete clsid=1 size=2".to_owned(),
        "type=deleted key=k cmd=md clsid=1 size=3".to_owned(),
        format!("type=conn_close {remote} reason=normal"),
    ] {
        assert_eq!(lines.what(), what);
    }
    // What is no command ends a connection by an error.
    for says in ["GET / HTTP/1.1\n".to_owned(), "x".repeat(40_000)] {
        let mut client = server.connect();
        let remote = format!(
            "rip=127.0.0.1 rport={} transport=tcp",
            client.local_addr().expect("an address").port()
        );
        dialogue(&mut client, &says, "");
        assert_eq!(lines.what(), format!("type=conn_new {remote}"));
        assert_eq!(lines.what(), format!("type=conn_close {remote} reason=error"));
    }
    // A watcher sends no commands any more.
    lines.0.get_mut().write_all(b"get k\r\n").expect("taken");
    dialogue(&mut server.connect(), "get other\n", "END\n");
    assert!(lines.what().starts_with("type=conn_new"));
    assert_eq!(lines.what(), "type=item_get key=other status=not_found clsid=0 size=0");
}

/// Returns a row of `stats`.
fn stat(client: &mut TcpStream, name: &str) -> usize {
    client.write_all(b"stats\r\n").expect("taken");
    let mut stats = String::new();
    while !stats.ends_with("END\r\n") {
        let mut bytes = [0; 4096];
        let got = client.read(&mut bytes).expect("an answer");
        stats.push_str(&String::from_utf8_lossy(&bytes[..got]));
    }
    let row = stats.lines().find_map(|row| row.strip_prefix(&format!("STAT {name} ")));
    row.and_then(|value| value.parse().ok()).expect(name)
}

#[test]
fn each_evicted_item_has_a_line() {
    let server = Running::start(|settings| settings.memory = 8 << 20);
    let mut lines = Watching::start(server.connect(), "evictions");
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let watch = thread::spawn(move || {
        let (mut keys, mut large) = (BTreeSet::new(), 0);
        loop {
            let what = lines.what();
            let Some(key) = what.strip_prefix("type=eviction key=") else { panic!("{what}") };
            let (key, rest) = key.split_once(' ').expect("fields");
            if key.starts_with("end") {
                return (keys, large);
            }
            assert!(rest.starts_with("fetch=no ttl=-1 la="), "{what}");
            let class = if key.starts_with("large") { 2 } else { 1 };
            assert!(rest.contains(&format!(" clsid={class} size=")), "{what}");
            large += class - 1;
            assert!(keys.insert(key.to_owned()), "evicted twice: {key}");
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut client = server.connect();
    let (small, value) = ("x".repeat(500), "y".repeat(50_000));
    // A slow watcher would lose lines.
    let keep_pace = |client: &mut TcpStream| {
        let evicted = stat(client, "evictions");
        // Of an item whose pages were lost there is no line.
        let is_read = || seen.load(Ordering::Relaxed) + 1000 >= evicted || watch.is_finished();
        wait_until("the lines are read", Duration::from_secs(20), is_read);
    };
    for n in 0..30_000 {
        dialogue(&mut client, &format!("set small{n} 0 0 500\n{small}\n"), "STORED\n");
        if n % 100 == 0 {
            dialogue(&mut client, &format!("set large{n} 0 0 50000\n{value}\n"), "STORED\n");
        }
        if n % 1000 == 0 {
            keep_pace(&mut client);
        }
    }
    assert_eq!(stat(&mut client, "log_watcher_skipped"), 0);
    let evicted = stat(&mut client, "evictions");
    for n in 0..30_000 {
        if watch.is_finished() {
            break;
        }
        dialogue(&mut client, &format!("set end{n} 0 0 500\n{small}\n"), "STORED\n");
        if n % 1000 == 0 {
            keep_pace(&mut client);
        }
    }
    let (keys, large) = watch.join().expect("right lines");
    assert!(evicted > 10_000 && large > 10, "{evicted} and {large}");
    assert!(keys.len() >= evicted, "{} of {evicted}", keys.len());
}

#[test]
fn recalls_and_the_items_that_they_took_are_told() {
    let scratch = Scratch::new("watch-recall");
    let control = scratch.path().join("control");
    let settings = Settings {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        memory: 16 << 20,
        control: Some(control.clone()),
        ..Settings::default()
    };
    let server = Running::of(Server::start(settings).expect("a server"));
    let mut lines = Watching::start(server.connect(), "recalls");
    let mut client = server.connect();
    // Upkeep, which finds lost items without their keys, looks at few of them at a time.
    const ITEMS: usize = 1000;
    let value = "z".repeat(9_000);
    for n in 0..ITEMS {
        dialogue(&mut client, &format!("set k{n} 0 0 9000\n{value}\n"), "STORED\n");
    }
    let mut taken = 0;
    ask_control(&control, 64 << 20, Duration::ZERO, |recalled| taken = recalled.bytes)
        .expect("a recall");
    let what = lines.what();
    assert!(what.starts_with(&format!("type=recall bytes={taken} runs=")), "{what}");
    let keys: String = (0..ITEMS).map(|n| format!(" k{n}")).collect();
    client.write_all(format!("get{keys}\r\n").as_bytes()).expect("taken");
    let lines = std::iter::repeat_with(|| lines.what()).take(ITEMS);
    let what = lines.into_iter().find(|what| what.contains(" key=")).expect("one with its key");
    assert!(what.starts_with("type=recalled key=k") && what.contains(" fetch=no la="), "{what}");
}

#[test]
fn a_watcher_that_does_not_read_misses_lines_and_blocks_nobody() {
    const SETS: usize = 12_000;
    let scratch = Scratch::new("watch-slow");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| settings.unix = Some((path.clone(), 0o700)));
    let mut slow = UnixStream::connect(&path).expect("connect");
    slow.set_read_timeout(Some(slowed(Duration::from_secs(20)))).expect("a timeout");
    dialogue(&mut slow, "watch mutations\n", "OK\n");
    let mut client = server.connect();
    let key = "k".repeat(200);
    for n in 0..SETS {
        let says = format!("set {key}{n} 0 0 1\nx\n");
        dialogue(&mut client, &says, "STORED\n");
    }
    let mut slow = BufReader::new(slow);
    let (mut lines, mut skipped) = (0, 0);
    while lines + skipped < SETS {
        let mut line = String::new();
        slow.read_line(&mut line).expect("a line");
        match line.trim_end().strip_prefix("skipped=") {
            Some(more) => skipped += more.parse::<usize>().expect("a number"),
            None => lines += usize::from(line.contains(" type=item_store key=kkk")),
        }
    }
    assert!(lines + skipped == SETS && skipped > SETS / 4, "{lines} and {skipped}");
    dialogue(&mut client, &format!("set {key} 0 0 1\nx\n"), "STORED\n");
    let mut line = String::new();
    slow.read_line(&mut line).expect("a line");
    assert!(line.contains(&format!("key={key} ")), "it goes on: {line}");
}

#[test]
fn watchers_are_few_and_can_be_refused() {
    let server = Running::start(|_| {});
    dialogue(&mut server.connect(), "watch nothing\nwatch mutations x\n", "ERROR\nERROR\n");
    let mut all: Vec<Watching> = (0..20).map(|_| Watching::start(server.connect(), "")).collect();
    let many = "WATCHER_TOO_MANY log watcher limit reached\n";
    dialogue(&mut server.connect(), "watch evictions\n", many);
    all.pop();
    wait_until("one has left", Duration::from_secs(20), || {
        let mut stream = server.connect();
        stream.write_all(b"watch evictions\r\n").expect("taken");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        byte == *b"O"
    });
    let server = Running::start(|settings| settings.access.refuse_watch = true);
    let refused = "CLIENT_ERROR watch commands not allowed\n";
    dialogue(&mut server.connect(), "watch evictions\n", refused);
}
