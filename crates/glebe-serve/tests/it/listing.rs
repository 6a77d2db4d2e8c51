//! Tests which keys `metadump`, `mgdump` and `cachedump` list, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use glebe_testing::time::wait_until;
use glebe_testing::Scratch;

use crate::running::{dialogue, stat, Running};

/// Returns the answer's lines before `end`.
fn lines(stream: &mut TcpStream, asks: &str, end: &str) -> Vec<String> {
    stream.write_all(format!("{asks}\r\n").as_bytes()).expect("taken");
    let mut lines = Vec::new();
    for line in BufReader::new(stream).split(b'\n') {
        let line = String::from_utf8(line.expect("an answer")).expect("text");
        let line = line.strip_suffix('\r').expect("a line's end").to_owned();
        if line == end {
            return lines;
        }
        lines.push(line);
    }
    panic!("no {end} after {} lines", lines.len());
}

fn metadump(stream: &mut TcpStream) -> Vec<String> {
    lines(stream, "lru_crawler metadump all", "END")
}

fn fields(line: &str) -> BTreeMap<&str, &str> {
    line.split(' ').filter_map(|field| field.split_once('=')).collect()
}

#[test]
fn a_line_has_what_memcached_tells_of_an_item() {
    let server = Running::start(|settings| settings.debug_time = true);
    let mut stream = server.connect();
    // Stops the clock.
    dialogue(&mut stream, "debugtime p\nset a%2 7 0 5\nvalue\n", "OK\nSTORED\n");
    let value = "x".repeat(9000);
    dialogue(
        &mut stream,
        &format!("set large 0 1000 9000\n{value}\ndebugtime 20\nget large\n"),
        &format!("STORED\nOK\nVALUE large 0 9000\n{value}\nEND\n"),
    );
    let mut listed = metadump(&mut stream);
    listed.sort_unstable();
    let [small, large] = [&listed[0], &listed[1]].map(|line| fields(line));
    let names: Vec<&str> =
        listed[0].split(' ').filter_map(|field| Some(field.split_once('=')?.0)).collect();
    assert_eq!(names, ["key", "exp", "la", "cas", "fetch", "cls", "size", "flags"]);
    let number = |text: &str| text.parse::<i64>().expect("a number");
    for (item, wanted) in [
        (&small, [("key", "a%252"), ("exp", "-1"), ("cas", "1"), ("fetch", "no"), ("cls", "1")]),
        (&large, [("key", "large"), ("cas", "2"), ("fetch", "yes"), ("cls", "2"), ("flags", "0")]),
    ] {
        for (name, value) in wanted {
            assert_eq!(item[name], value, "{name} of {item:?}");
        }
    }
    assert_eq!(small["flags"], "7");
    assert!(number(small["size"]) >= 3 + 5 && number(large["size"]) >= 5 + 9000, "{listed:?}");
    let passed = number(large["la"]) - number(small["la"]);
    assert!((20..40).contains(&passed), "{passed}");
    assert_eq!(number(large["exp"]) - number(small["la"]), 1000);
    dialogue(
        &mut stream,
        "me a%2\n",
        &format!("ME a%2 exp=-1 la={passed} cas=1 fetch=no cls=1 size={}\n", small["size"]),
    );
}

#[test]
fn all_that_can_be_read_is_listed_and_nothing_else() {
    let server = Running::start(|settings| settings.debug_time = true);
    let mut stream = server.connect();
    let mut keys = BTreeSet::new();
    for n in 0..20_000 {
        let len = if n % 1000 == 0 { 10_000 } else { 1 };
        write!(stream, "set key{n} 0 0 {len} noreply\r\n{}\r\n", "x".repeat(len)).expect("taken");
        keys.insert(format!("key{n}"));
    }
    dialogue(&mut stream, "set over 0 -1 1\nx\nset ends 0 10 1\nx\n", "STORED\nSTORED\n");
    let listed = |stream: &mut TcpStream, what: &str| {
        let lines = lines(stream, what, "END");
        let key = |line: &String| fields(line)["key"].to_owned();
        let listed: BTreeSet<String> = lines.iter().map(key).collect();
        assert_eq!(listed.len(), lines.len());
        listed
    };
    let with_ends = listed(&mut stream, "lru_crawler metadump all");
    assert!(with_ends.contains("ends") && with_ends.len() == keys.len() + 1);
    dialogue(&mut stream, "debugtime 20\n", "OK\n");
    assert!(listed(&mut stream, "lru_crawler metadump hash") == keys);
    assert_eq!(listed(&mut stream, "lru_crawler metadump 2").len(), 20);
    assert_eq!(listed(&mut stream, "lru_crawler metadump 1,9").len(), 19_980);
    assert_eq!(lines(&mut stream, "lru_crawler mgdump 1,2", "EN").len(), 20_000);
    assert_eq!(lines(&mut stream, "stats cachedump 2 0", "END").len(), 20);
    assert_eq!(lines(&mut stream, "stats cachedump 1 7", "END").len(), 7);
    dialogue(&mut stream, "flush_all\nlru_crawler metadump all\nmn\n", "OK\nEND\nMN\n");
    dialogue(
        &mut stream,
        "lru_crawler mgdump all\nstats cachedump 1 0\nstats cachedump 2 0\n\
         lru_crawler metadump 0\nlru_crawler metadump 1,x\nlru_crawler mgdump 64\n",
        "EN\nEND\nEND\nBADCLASS invalid class id\nBADCLASS invalid class id\n\
         BADCLASS invalid class id\n",
    );
    let server = Running::start(|settings| settings.dump = false);
    let refused = "ERROR metadump not allowed\n";
    dialogue(&mut server.connect(), "lru_crawler metadump all\n", refused);
}

#[test]
fn a_line_of_mgdump_finds_its_item_whatever_its_key() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    // In base64: bytes with line ends, `key`, and a blank. Only `key` can be in a text command.
    let sent = ["ACB0d28NCmxpbmVz/w==", "a2V5", "IA=="];
    for key in sent {
        dialogue(&mut stream, &format!("ms {key} 5 b\nvalue\n"), "HD\n");
    }
    let mut listed = lines(&mut stream, "lru_crawler mgdump all", "EN");
    for line in &listed {
        dialogue(&mut stream, &format!("{line} v\n"), "VA 5\nvalue\n");
    }
    listed.sort_unstable();
    assert_eq!(listed, ["mg ACB0d28NCmxpbmVz/w== b", "mg IA== b", "mg key"]);
    let mut encoded = metadump(&mut stream);
    encoded.sort_unstable();
    assert!(encoded[0].starts_with("key=%00%20two%0D%0Alines%FF exp="), "{encoded:?}");
    assert_eq!(lines(&mut stream, "stats cachedump 1 0", "END"), ["ITEM key [5 b; 0 s]"]);
}

#[test]
fn a_long_cachedump_comes_to_its_end() {
    let scratch = Scratch::new("cachedump");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| {
        settings.memory = 64 << 20;
        settings.unix = Some((path.clone(), 0o700));
    });
    // The kernel buffers little for a Unix socket.
    let mut stream = UnixStream::connect(&path).expect("connect");
    for key in 0..20_000 {
        dialogue(&mut stream, &format!("set {key:0200} 0 0 1 noreply\nx\n"), "");
    }
    stream.write_all(b"stats cachedump 1 0\r\nmn\r\n").expect("taken");
    let mut honest = server.connect();
    wait_until("the client does not read yet", Duration::from_secs(20), || {
        stat(&mut honest, "response_obj_bytes") + stat(&mut honest, "response_obj_oom") > 0
    });
    let mut listed = 0;
    for line in BufReader::new(&stream).lines() {
        match line.expect("an answer").as_str() {
            "END" => break,
            line => listed += line.len() + 2,
        }
    }
    let most = 2 << 20;
    assert!((most..most + 300).contains(&listed), "{listed}");
    drop(server);
}
