//! Tests `glebe serve --metrics`, and that the files in `monitoring` name what it exports.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use glebe_testing::openmetrics::{parse, Family};
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use super::leases::lacks_memory;
use super::{dialogue, glebe, list, output, patience, Serving};

const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0";

fn address(serving: &Serving) -> String {
    let of_line = |line: &String| {
        Some(line.strip_prefix("metrics at http://")?.strip_suffix("/metrics")?.to_owned())
    };
    serving.said.iter().find_map(of_line).unwrap_or_else(|| panic!("{:?}", serving.said))
}

fn scrape(address: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(patience())).expect("a timeout");
    let head = format!("GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// Returns the families of a scrape that has those of the machine's memory.
fn families(address: &str) -> Vec<Family> {
    let mut text = String::new();
    wait_until("a reading of the machine's memory", patience(), || {
        text = scrape(address, OPENMETRICS);
        text.contains("\nglebe_machine_frames_visible ")
    });
    parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> f64 {
    let samples = families.iter().flat_map(|family| &family.samples);
    let mut found = samples.filter(|sample| {
        let has =
            |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|v| v == value);
        sample.name == name && labels.iter().all(has)
    });
    found.next().unwrap_or_else(|| panic!("no {name} {labels:?}")).value
}

fn stat(rows: &[String], name: &str) -> f64 {
    let row = rows.iter().find_map(|row| row.strip_prefix(&format!("STAT {name} ")));
    row.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {rows:?}"))
}

#[test]
fn metrics_are_those_of_stats() {
    let serving = Serving::start(
        glebe().args(["serve", "--no-stats", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]),
        3,
    );
    let (at, mut stream) = (address(&serving), serving.connect());
    for (says, hears) in [
        ("set small 0 0 5\nvalue\n", "STORED\n"),
        ("get small\n", "VALUE small 0 5\nvalue\nEND\n"),
        ("get missing\n", "END\n"),
        ("get missing\n", "END\n"),
        ("incr missing 1\n", "NOT_FOUND\n"),
        ("touch small 0\n", "TOUCHED\n"),
        ("cas small 0 0 1 999999999\nx\n", "EXISTS\n"),
    ] {
        dialogue(&mut stream, says, hears);
    }
    let large = format!("set large 0 0 20000\n{}\n", "x".repeat(20_000));
    dialogue(&mut stream, &large, "STORED\n");
    let families = families(&at);
    let rows = list(&mut stream, "stats");
    let command = |command, result| {
        let labels = [("command", command), ("result", result)];
        value(&families, "glebe_serve_commands_total", &labels)
    };
    for (of, name) in [("hit", "hits"), ("miss", "misses")] {
        for word in ["get", "touch", "delete", "incr", "decr", "cas"] {
            assert_eq!(command(word, of), stat(&rows, &format!("{word}_{name}")), "{word} {of}");
        }
    }
    assert_eq!((command("get", "hit"), command("get", "miss")), (1.0, 2.0));
    assert_eq!(command("cas", "changed"), 1.0);
    for (metric, name) in [
        ("glebe_serve_sets_total", "cmd_set"),
        ("glebe_serve_stored_items_total", "total_items"),
        ("glebe_serve_received_bytes_total", "bytes_read"),
        ("glebe_serve_limit_bytes", "limit_maxbytes"),
        ("glebe_serve_used_bytes", "bytes_used"),
        ("glebe_serve_index_bytes", "hash_bytes"),
        ("glebe_serve_connections_max", "max_connections"),
        ("glebe_serve_threads", "threads"),
    ] {
        // The client's `stats` came after the scrape.
        let sent = if name == "bytes_read" { 7.0 } else { 0.0 };
        assert_eq!(value(&families, metric, &[]) + sent, stat(&rows, name), "{metric}");
    }
    for class in ["small", "large"] {
        assert_eq!(value(&families, "glebe_serve_items", &[("class", class)]), 1.0);
    }
    assert_eq!(value(&families, "glebe_serve_connections", &[]), 1.0);
    let [total, live, held, free] = ["total", "live", "held", "free"]
        .map(|name| value(&families, &format!("glebe_reserve_{name}_bytes"), &[]));
    assert!(total > 0.0 && total == live + held + free, "{total} {live} {held} {free}");
    assert!(value(&families, "process_cpu_seconds_total", &[]) >= 0.0);
    assert!(value(&families, "process_resident_memory_bytes", &[]) > 1e6);
    assert!(value(&families, "process_start_time_seconds", &[]) > 1.7e9);
    assert!(!families.iter().any(|family| family.name.starts_with("glebe_lease_")));
}

#[test]
fn a_hostile_client_of_the_metrics_holds_neither_the_cache_nor_the_end() {
    let mut serving = Serving::start(
        glebe().args(["serve", "--no-stats", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]),
        3,
    );
    let (at, mut stream) = (address(&serving), serving.connect());
    let silent: Vec<TcpStream> = (0..100).filter_map(|_| TcpStream::connect(&at).ok()).collect();
    let mut endless = TcpStream::connect(&at).expect("connect");
    // An error is the server's refusal of a head that is too long.
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    assert!(silent.len() > 16);
    dialogue(&mut stream, "set key 0 0 5\nvalue\n", "STORED\n");
    dialogue(&mut stream, "get key\n", "VALUE key 0 5\nvalue\nEND\n");
    assert!(scrape(&at, "*/*").contains("\nglebe_serve_sets_total 1\n"));
    serving.signal("TERM");
    serving.ends_well();
}

#[test]
fn an_address_that_cannot_be_had_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").to_string();
    let refused = |words: &[&str]| {
        let all = [&["serve", "--no-stats", "-l", "127.0.0.1:0", "--metrics"], words].concat();
        let output = output(&all);
        assert!(output.stdout.is_empty() && !output.status.success(), "{output:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = refused(&[&port]);
    assert_eq!(status, Some(1));
    assert!(said.contains(&format!("--metrics: cannot listen at {port}: ")), "{said}");
    for wrong in ["9464", "127.0.0.1", "127.0.0.1:70000", ""] {
        let (status, said) = refused(&[wrong]);
        assert_eq!(status, Some(2), "{wrong}: {said}");
        assert!(said.contains(&format!("--metrics {wrong}: ")), "{said}");
        assert!(said.contains("ADDRESS:PORT is needed, for example 127.0.0.1:9464"), "{said}");
    }
    // A check starts nothing, so it may run beside the server.
    let checked = output(&["serve", "--check", "--metrics", &port]);
    assert!(checked.status.success(), "{checked:?}");
}

/// Returns the families of a server with leases, or `None` without huge pages.
fn all_families(scratch: &Scratch) -> Option<(Serving, Vec<Family>)> {
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let wrong = scratch.path().join("wrong");
    let mut command = glebe();
    command.args(["serve", "--no-stats", "--leases", "-m", "32", "-s", &at("cache")]);
    command.args(["--lease-socket", &at("leases"), "--lease-zeroed", "4M"]);
    command.args(["--metrics", "127.0.0.1:0"]).stderr(fs::File::create(&wrong).expect("a file"));
    let serving = Serving::start(&mut command, 4);
    if serving.said[0].is_empty() {
        lacks_memory(&fs::read_to_string(&wrong).expect("text"));
        return None;
    }
    let families = families(&address(&serving));
    Some((serving, families))
}

fn monitoring(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../monitoring", name].iter().collect()
}

/// Returns the words of a text that begin like names of these metrics.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let parts = ["serve_", "reserve_", "lease_", "machine_"].map(|of| format!("glebe_{of}"));
    let is_ours = |word: &&str| {
        word.starts_with("process_") || parts.iter().any(|part| word.starts_with(&**part))
    };
    words.filter(is_ours).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_are_exported() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("metrics"));
    let Some((serving, families)) = all_families(&scratch) else { return };
    let exported: BTreeSet<&str> =
        families.iter().flat_map(|family| &family.samples).map(|of| &*of.name).collect();
    let is_visible = value(&families, "glebe_machine_frames_visible", &[]) > 0.0;
    for file in ["grafana.json", "alerts.yaml", "alerts_test.yaml"] {
        let text = fs::read_to_string(monitoring(file)).expect(file);
        let named = named(&text);
        assert!(named.len() > 3, "{file}: {named:?}");
        // Without root, the machine's long runs are unknown.
        let hides = |name: &&&str| is_visible || !name.starts_with("glebe_machine_");
        let missing: Vec<_> =
            named.iter().filter(|name| !exported.contains(**name)).filter(hides).collect();
        assert!(missing.is_empty(), "{file}: {missing:?} are not exported");
    }
    let text = fs::read_to_string(monitoring("grafana.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        let is_row = panel["type"] == "row";
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert!(is_row || targets > 0, "{} asks for nothing", panel["title"]);
        let place = &panel["gridPos"];
        let end = place["x"].as_u64().and_then(|x| Some(x + place["w"].as_u64()?));
        assert!(end.is_some_and(|end| end <= 24), "{place}");
    }
    promtool(&address(&serving));
}

/// Lets Prometheus' own tool judge the metrics and the rules.
fn promtool(address: &str) {
    let promtool = |words: &[&str]| {
        let mut command = Command::new("promtool");
        command.args(words).current_dir(monitoring("")).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    };
    let Ok(mut check) = promtool(&["check", "metrics"]) else {
        return println!("skipped: promtool is not installed; Debian: prometheus");
    };
    let text = scrape(address, "text/plain");
    check.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("taken");
    let checked = check.wait_with_output().expect("a child");
    let complaints = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && complaints.is_empty(), "{complaints}\n{text}");
    for words in [&["check", "rules", "alerts.yaml"][..], &["test", "rules", "alerts_test.yaml"]] {
        let checked = promtool(words).and_then(|child| child.wait_with_output()).expect("a child");
        assert!(checked.status.success(), "{words:?}: {checked:?}");
    }
}

#[test]
fn metrics_of_leases_are_there_while_the_daemon_lends() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("metrics-leases"));
    let Some((serving, families)) = all_families(&scratch) else { return };
    assert_eq!(value(&families, "glebe_lease_leased_total", &[]), 0.0);
    let socket = scratch.path().join("leases");
    let lease = output(&["lease", "--socket", socket.to_str().unwrap(), "2M", "--", "true"]);
    assert!(lease.status.success(), "{lease:?}");
    // A text is up to a tenth of a second old.
    wait_until("the count of leases", Duration::from_secs(20), || {
        let text = scrape(&address(&serving), OPENMETRICS);
        text.contains("\nglebe_lease_leased_total 1\n")
    });
}
