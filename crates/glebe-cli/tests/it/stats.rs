//! Tests `glebe stats`: own reserves, none, other users' reserves, stale sockets.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use glebe::contig::{Contig, Source};
use glebe::internal::{with_node_family, with_node_members, NodeBytes};
use glebe::page_size;
use glebe::reserve::{Request, Reserve, Stats};
use glebe::units::{Bytes, Pages};
use glebe_testing::{openmetrics, Scratch};
use serde_json::Value;

use crate::reachable::{Reachable, NOBODY};
fn reserve() -> Reserve {
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
    let reserve = Reserve::options().build_on(contig).unwrap();
    let pool = reserve.page_cache().namespace("test").unwrap();
    let page = vec![1; page_size().bytes().as_usize()];
    for index in 0..reserve.len().get() {
        pool.put(1, index % 400, &page).unwrap();
    }
    pool.invalidate_page(1, 7).unwrap();
    reserve.alloc(Request::new(Pages::new(9)).any()).unwrap();
    reserve
}

fn stats(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("stats").arg("--dir").arg(dir).args(args).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(stderr.starts_with("glebe: ") && stderr.lines().count() == 1, "{stderr}");
    stderr
}

#[test]
fn json_is_that_of_the_process_and_obeys_the_identities() {
    let scratch = Scratch::new("json");
    let (one, two) = (reserve(), reserve());
    one.serve_stats_in(scratch.path()).unwrap();
    two.serve_stats_in(scratch.path()).unwrap();
    let pid = std::process::id();
    let all: Value = serde_json::from_str(&text(&stats(scratch.path(), &["--json"]))).unwrap();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 2);
    assert!(all[0]["reserve"].as_u64() < all[1]["reserve"].as_u64());
    for (value, reserve) in all.iter().zip([&one, &two]) {
        assert_eq!(value["pid"], pid);
        assert!(value["command"].as_str().is_some_and(|name| !name.is_empty()));
        let expected = with_node_members(reserve.stats().to_json(), &NodeBytes::new().of(reserve));
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(value["statistics"], expected);
        let of = |name: &str| value["statistics"][name].as_u64().expect(name);
        let gone = of("evicted") + of("replaced") + of("invalidated_pages") + of("recalled");
        assert_eq!(of("stored") + of("rejected_recalled"), of("live_pages") + gone);
        assert_eq!(of("total_pages"), of("live_pages") + of("held_pages") + of("free_pages"));
        assert!(of("stored") > 0 && of("invalidated_pages") == 1 && of("alloc_count") == 1);
    }
    let only: Value =
        serde_json::from_str(&text(&stats(scratch.path(), &["--json", "--pid", &pid.to_string()])))
            .unwrap();
    assert_eq!(only.as_array().unwrap().len(), 2);
}

#[test]
fn text_names_each_reserve_and_openmetrics_is_one_valid_text() {
    let scratch = Scratch::new("text");
    let reserves = [reserve(), reserve(), reserve()];
    for reserve in &reserves {
        reserve.serve_stats_in(scratch.path()).unwrap();
    }
    let shown = text(&stats(scratch.path(), &["--all"]));
    let heads = shown.lines().filter(|line| line.starts_with("process ")).count();
    assert_eq!(heads, 3, "{shown}");
    assert!(shown.contains(&reserves[0].stats().to_string()));
    let brief = text(&stats(scratch.path(), &[]));
    assert_eq!(brief.matches("2 MiB: ").count(), 3, "{brief}");
    assert!(brief.contains("\nstored ") && !brief.contains("\nalloc_failures "), "{brief}");

    let families = openmetrics::parse(&text(&stats(scratch.path(), &["--openmetrics"]))).unwrap();
    let nodes = NodeBytes::new().of(&reserves[0]);
    let alone = reserves[0].stats().to_openmetrics();
    let alone = with_node_family(alone, "glebe_reserve_", &[], &nodes);
    let alone = openmetrics::parse(&alone).unwrap();
    assert_eq!(families.len(), alone.len());
    for (family, alone) in families.iter().zip(&alone) {
        let metadata =
            |f: &openmetrics::Family| [&f.name, &f.kind, &f.unit, &f.help].map(String::clone);
        assert_eq!(metadata(family), metadata(alone));
        assert_eq!(family.samples.len(), 3 * alone.samples.len());
        let (sample, pid) = (&family.samples[0], std::process::id().to_string());
        assert!(sample.labels["pid"] == pid && sample.value >= 0.0 && !sample.name.is_empty());
    }
}

#[test]
fn nothing_served_is_said_with_where_it_was_looked_for() {
    let scratch = Scratch::new("none");
    for dir in [scratch.path().to_owned(), scratch.path().join("missing")] {
        for form in [&[][..], &["--json"], &["--openmetrics"], &["--pid", "1"]] {
            let output = stats(&dir, form);
            assert!(output.stdout.is_empty());
            assert!(refusal(&output).contains(&dir.display().to_string()));
        }
    }
}

#[test]
fn a_socket_left_behind_is_ignored_beside_a_live_one_and_alone() {
    let scratch = Scratch::new("stale");
    drop(UnixListener::bind(scratch.path().join("1.0.sock")).unwrap());
    assert!(refusal(&stats(scratch.path(), &[])).contains("no process"));
    let reserve = reserve();
    reserve.serve_stats_in(scratch.path()).unwrap();
    assert_eq!(text(&stats(scratch.path(), &[])).matches("process ").count(), 1);
    drop(reserve);
    refusal(&stats(scratch.path(), &[]));
}

#[test]
fn one_that_answers_nonsense_is_named_and_the_others_are_shown() {
    let scratch = Scratch::new("nonsense");
    let reserve = reserve();
    reserve.serve_stats_in(scratch.path()).unwrap();
    // The socket's name has the number of this process, so the socket counts as live.
    let liar = scratch.path().join(format!("{}.99999.sock", std::process::id()));
    let listener = UnixListener::bind(liar).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 32];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(b"glebe-stats/1 ok 9\n\x1b]0;owned\x07").unwrap();
        });
        let output = stats(scratch.path(), &["--all"]);
        assert!(refusal(&output).contains(".99999.sock"), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(&reserve.stats().to_string()));
    });
}

#[test]
fn an_answer_of_another_form_hides_no_other_process() {
    let scratch = Scratch::new("no-form");
    let reserve = reserve();
    reserve.serve_stats_in(scratch.path()).unwrap();
    let number = format!("{}.99999", std::process::id());
    let listener = UnixListener::bind(scratch.path().join(format!("{number}.sock"))).unwrap();
    let family = "# TYPE f gauge\n# UNIT f bytes\n# HELP f a text\n";
    let cases = [
        ("--json", "no JSON", vec!["x\n".to_owned(), "1".into(), "[]".into()]),
        (
            "--openmetrics",
            "no OpenMetrics",
            vec![
                "x\n".to_owned(),
                "f 1\n# EOF\n".into(),
                family.into(),
                format!("{family}f x\n# EOF\n"),
                format!("{family}g 1\n# EOF\n"),
                format!("{family}# EOF\nf 1\n# EOF\n"),
            ],
        ),
    ];
    for (form, why, answers) in cases {
        for answer in answers {
            let output = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    assert!(stream.read(&mut [0; 32]).unwrap() > 0);
                    let text = format!("glebe-stats/1 ok {}\n{answer}", answer.len());
                    stream.write_all(text.as_bytes()).unwrap();
                });
                stats(scratch.path(), &[form])
            });
            let shown = String::from_utf8(output.stdout.clone()).unwrap();
            match form {
                "--json" => {
                    let all: Value = serde_json::from_str(&shown).expect(&shown);
                    let total = reserve.len().get();
                    assert_eq!(all.as_array().unwrap().len(), 1, "{shown}");
                    assert_eq!(all[0]["statistics"]["total_pages"], total, "{shown}");
                }
                _ => assert!(openmetrics::parse(&shown).unwrap().len() > 10, "{shown}"),
            }
            let said = refusal(&output);
            assert!(said.contains("reserve 99999") && said.contains(why), "{answer:?}: {said}");
        }
    }
}

#[test]
fn other_users_may_not_read() {
    let scratch = Scratch::new("others");
    let reserve = reserve();
    reserve.serve_stats_in(scratch.path()).unwrap();
    let copy = Reachable::new();
    let as_nobody = || {
        let mut command = Command::new(copy.program());
        command.arg("stats").arg("--dir").arg(scratch.path());
        command.uid(NOBODY).gid(NOBODY).current_dir("/").output()
    };
    for mode in [0o700, 0o755] {
        // The socket's mode must protect it even in an open directory.
        fs::set_permissions(scratch.path(), Permissions::from_mode(mode)).unwrap();
        match as_nobody() {
            Ok(output) => assert!(refusal(&output).contains("ermission denied"), "{output:?}"),
            Err(error) => {
                println!("skipped: cannot run as uid {NOBODY}: {error}");
                return;
            }
        }
    }
}

#[test]
fn every_statistic_is_described() {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe")).args(["stats", "--describe"]).output();
    let described = text(&output.unwrap());
    let (described, leases) = described.split_once("\nleases:\n").unwrap();
    let described = described.strip_prefix(&Stats::describe()).unwrap();
    let node = "node_N_bytes             bytes  bytes of the reserve on this NUMA node";
    assert_eq!(described, format!("{node}, if the machine has several\n"));
    let described = Stats::describe();
    for line in [
        "leased_total             count   leases given",
        "held_bytes               bytes   pages that clients hold",
    ] {
        assert!(leases.lines().any(|found| found == line), "{leases}");
    }
    assert!(leases.lines().all(|line| line.split_whitespace().count() >= 3), "{leases}");
    let json: Value = serde_json::from_str(&Stats::default().to_json()).unwrap();
    let mut names: Vec<&str> = described.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(described.lines().all(|line| line.split_whitespace().count() >= 4), "{described}");
    let mut expected: Vec<&String> = json.as_object().unwrap().keys().collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn a_watch_prints_again_what_it_found_and_ends_with_its_reader() {
    let scratch = Scratch::new("watch");
    let reserve = reserve();
    reserve.serve_stats_in(scratch.path()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.args(["stats", "--watch", "0.1", "--dir"]).arg(scratch.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let header = lines.next().unwrap().unwrap();
    assert!(lines.any(|line| line.unwrap() == header), "the same process once more");
    drop(lines);
    assert!(child.wait().unwrap().success(), "a closed pipe is no failure");
    let none = Scratch::new("watch-none");
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.args(["stats", "--json", "--watch", "0.1", "--dir"]).arg(none.path());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(said.contains("serves statistics"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
}
