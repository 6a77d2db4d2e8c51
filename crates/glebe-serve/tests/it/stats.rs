//! Tests `stats` as monitoring programs read it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::running::{dialogue, Running};

/// Returns an answer's numbers by name. Asserts that names are unique.
fn numbers(stream: &mut TcpStream, asks: &str) -> BTreeMap<String, u64> {
    stream.write_all(format!("{asks}\r\n").as_bytes()).expect("taken");
    let mut numbers = BTreeMap::new();
    for line in BufReader::new(stream).lines() {
        let line = line.expect("an answer");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["END"] => return numbers,
            ["STAT", name, value, ..] => {
                let before = numbers.insert(name.to_owned(), value.parse().unwrap_or(0));
                assert!(before.is_none(), "{name} twice");
            }
            _ => panic!("{line}"),
        }
    }
    panic!("no end");
}

const SLABS: &[&str] = &[
    "chunk_size",
    "chunks_per_page",
    "total_pages",
    "total_chunks",
    "used_chunks",
    "free_chunks",
    "free_chunks_end",
];
const ITEMS: &[&str] = &[
    "number",
    "age",
    "mem_requested",
    "evicted",
    "evicted_nonzero",
    "evicted_time",
    "evicted_unfetched",
    "expired_unfetched",
    "outofmemory",
    "reclaimed",
    "tailrepairs",
];
/// Names whose values of both classes add up to the total.
const DONE: &[&str] = &[
    "get_hits",
    "cmd_set",
    "delete_hits",
    "incr_hits",
    "decr_hits",
    "cas_hits",
    "cas_badval",
    "touch_hits",
];

#[test]
fn each_class_has_its_own_numbers_and_no_series_comes_twice() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    let large = "x".repeat(20_000);
    dialogue(
        &mut stream,
        &format!(
            "set small 0 0 1\n1\nset large 0 0 20000\n{large}\nget small small\ngat 0 small\n\
             incr small 4\ndecr small 1\nset gone 0 0 1\nx\ndelete gone\nmg small\nms s 1\nx\n\
             cas small 0 0 1 99\nx\ntouch small 0\ntouch large 0\nmg large\nma small\n"
        ),
        "STORED\nSTORED\nVALUE small 0 1\n1\nVALUE small 0 1\n1\nEND\nVALUE small 0 1\n1\nEND\n\
         5\n4\nSTORED\nDELETED\nHD\nHD\nEXISTS\nTOUCHED\nTOUCHED\nHD\nHD\n",
    );
    let all = numbers(&mut stream, "stats");
    let slabs = numbers(&mut stream, "stats slabs");
    let items = numbers(&mut stream, "stats items");
    assert_eq!((slabs["active_slabs"], all["curr_items"]), (2, 3));
    for class in [1, 2] {
        let slab = |name: &str| slabs[&format!("{class}:{name}")];
        assert!(SLABS.iter().all(|name| slabs.contains_key(&format!("{class}:{name}"))));
        assert_eq!(slab("total_chunks"), slab("used_chunks") + slab("free_chunks"));
        assert!(slab("total_pages") > 0 && slab("chunk_size") > 0 && slab("chunks_per_page") > 0);
        for name in ITEMS {
            assert!(items.contains_key(&format!("items:{class}:{name}")), "{class} {name}");
            assert!(!slabs.contains_key(&format!("{class}:{name}")), "{class} {name}");
        }
        assert_eq!(items[&format!("items:{class}:number")], slab("used_chunks"));
    }
    for name in DONE {
        let sum: u64 = [1, 2].iter().map(|class| slabs[&format!("{class}:{name}")]).sum();
        assert_eq!(sum, all[*name], "{name}");
    }
    let of_large = DONE.iter().map(|name| slabs[&format!("2:{name}")]).collect::<Vec<_>>();
    assert_eq!(of_large, [1, 1, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn what_happens_to_one_class_is_not_counted_of_the_other() {
    let server = Running::start(|settings| settings.debug_time = true);
    let mut stream = server.connect();
    let large = "x".repeat(500_000);
    dialogue(&mut stream, "set small 0 10 1\n1\n", "STORED\n");
    for key in 0..50 {
        let noreply = format!("set {key} 0 0 500000 noreply\n{large}\n");
        dialogue(&mut stream, &noreply, "");
    }
    dialogue(&mut stream, "debugtime 20\nget small\nset small 0 0 1\n1\n", "OK\nEND\nSTORED\n");
    let (all, items) = (numbers(&mut stream, "stats"), numbers(&mut stream, "stats items"));
    assert!(all["evictions"] > 10);
    assert_eq!((items["items:1:evicted"], items["items:2:evicted"]), (0, all["evictions"]));
    assert_eq!((items["items:1:reclaimed"], items["items:2:reclaimed"]), (1, 0));
    let unfetched = ["items:1:expired_unfetched", "items:2:expired_unfetched"];
    assert_eq!(unfetched.map(|name| items[name]), [1, 0]);
    dialogue(&mut stream, "stats reset\n", "RESET\n");
    let items = numbers(&mut stream, "stats items");
    assert_eq!((items["items:2:evicted"], items["items:1:reclaimed"]), (0, 0));
}

/// Prometheus' exporter for memcached takes commands of `cas` out of `cmd_set`, reads times as two
/// whole numbers around a dot, and settings as numbers and words.
#[test]
fn the_exporter_of_prometheus_can_read_all_that_it_asks_for() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    dialogue(
        &mut stream,
        "set key 0 0 1\n1\ncas key 0 0 1 99999\n2\ncas none 0 0 1 1\n3\nms key 1\n4\n",
        "STORED\nEXISTS\nNOT_FOUND\nHD\n",
    );
    let all = numbers(&mut stream, "stats");
    let cas = all["cas_hits"] + all["cas_misses"] + all["cas_badval"];
    assert_eq!((cas, all["cmd_set"] - cas), (2, 2));
    let slabs = numbers(&mut stream, "stats slabs");
    let of_class = slabs["1:cas_hits"] + slabs["1:cas_badval"];
    assert!(slabs["1:cmd_set"] >= of_class && slabs.contains_key("total_malloced"), "{slabs:?}");
    let settings = numbers(&mut stream, "stats settings");
    assert!(settings["maxconns"] > 0);
    stream.write_all(b"stats\r\n").expect("taken");
    let lines = BufReader::new(&mut stream).lines().map(|line| line.expect("an answer"));
    let lines: Vec<String> = lines.take_while(|line| line != "END").collect();
    for name in ["rusage_user", "rusage_system"] {
        let value = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        let (seconds, micros) = value.and_then(|value| value.split_once('.')).expect(name);
        assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6, "{name}: {value:?}");
        assert!(micros.parse::<u64>().is_ok(), "{name}: {value:?}");
    }
}
