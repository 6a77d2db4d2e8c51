//! Tests `glebe contig`, also without privileges.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Node, PoolLock, Source};
use glebe::error::OsError;
use glebe::internal::sys::machine::hugetlb::{sizes, Pool};
use glebe::internal::sys::machine::memory_block::{BlockState, MemoryBlocks};
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::processes::process::effective_user;
use glebe::page_size;
use glebe::units::{Bytes, PageSize};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{slowed, wait_until};
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{two_nodes, Scratch};
use serde_json::{json, Value};

use crate::reachable::{Reachable, NOBODY};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("contig").args(args).current_dir("/");
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success() && complaints(&output).is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns standard error without notes about repairs after killed processes.
fn complaints(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let is_mended = |line: &&str| {
        line.contains("a process ended while") || line.contains("which no living process owns")
    };
    said.split_inclusive('\n').filter(|line| !is_mended(line)).collect()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = complaints(output);
    assert!(said.starts_with("glebe: ") && said.lines().count() == 1, "{said}");
    said
}

fn pool() -> Option<Pool> {
    Pool::of(*sizes().last()?)
}

#[test]
fn status_is_the_same_in_both_forms() {
    let text = ok(&["status"]);
    let value: Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    let pools = value["pools"].as_array().unwrap();
    assert_eq!(pools.len(), sizes().len());
    assert_eq!(text.lines().filter(|line| line.starts_with("hugetlb ")).count(), pools.len());
    assert!(value["available_bytes"].as_u64().unwrap() > 0);
    assert_eq!(text.contains("longest free run "), value["longest_free_run_bytes"].is_u64());
    assert!(
        text.contains(&format!("long-term pin    {}", value["long_term_pin"].as_str().unwrap()))
    );
}

/// Returns the free bytes in blocks of at least 2^order pages, by `/proc/buddyinfo`.
fn free_in_blocks(order: usize) -> u64 {
    let text = fs::read_to_string("/proc/buddyinfo").unwrap();
    let counts = text.lines().flat_map(|line| line.split_whitespace().skip(4).enumerate());
    let pages = |(of, count): (usize, &str)| count.parse::<u64>().unwrap() << of;
    counts.filter(|(of, _)| *of >= order).map(pages).sum::<u64>() * page_size().bytes().get()
}

#[test]
fn fragmentation_is_a_share_for_each_length_and_the_kernel_agrees() {
    let orders = [0, (2_u64 << 20).ilog2() - page_size().bytes().get().ilog2()];
    let before = orders.map(|order| free_in_blocks(order as usize));
    let value: Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    let after = orders.map(|order| free_in_blocks(order as usize));
    let shares = &value["fragmentation"]["shares"];
    assert!(value["fragmentation"]["for"].is_null());
    let (free, all) = (shares["free_bytes"].as_u64().unwrap(), shares["all_bytes"].as_u64());
    assert!(all.is_some_and(|all| free <= all), "{shares}");
    let runs = shares["runs"].as_array().unwrap();
    let lengths: Vec<_> = runs.iter().map(|run| run["at_least_bytes"].as_u64()).collect();
    assert_eq!(lengths, [2 << 20, 32 << 20, 128 << 20, 1 << 30].map(Some));
    let mut last = free;
    for run in runs {
        let (bytes, part) = (run["bytes"].as_u64(), run["of_free"].as_f64());
        let is_known = value["longest_free_run_bytes"].is_u64();
        assert!(bytes.is_some() || !is_known, "{run}");
        if let (Some(bytes), Some(part)) = (bytes, part) {
            assert!(bytes <= last && (bytes as f64 - part * free as f64).abs() < 2.0, "{run}");
            last = bytes;
        }
    }
    // Other programs take and free memory meanwhile.
    let slack = 1 << 30;
    let small = runs[0]["bytes"].as_u64();
    for (nth, seen) in [(0, Some(free)), (1, small)] {
        let Some(seen) = seen else { continue };
        let (least, most) = (before[nth].min(after[nth]), before[nth].max(after[nth]));
        let fits = (least.saturating_sub(slack)..=most + slack).contains(&seen);
        assert!(fits, "{seen}, the kernel has from {least} to {most}");
    }
}

#[test]
fn a_request_has_a_cost_that_fits_the_verdict() {
    let told = |len: &str| {
        let value: Value = serde_json::from_str(&ok(&["status", "--json", "--for", len])).unwrap();
        (value["fragmentation"]["for"].clone(), value["longest_free_run_bytes"].as_u64())
    };
    let (request, longest) = told("64M");
    assert_eq!(request["len_bytes"], 64 << 20);
    assert!(request["pool_free_bytes"].is_u64() && request["why"].is_string(), "{request}");
    assert_eq!(request["pages_to_move"].is_u64(), longest.is_some(), "{request}");
    let text = ok(&["status", "--for", "64M"]);
    for start in ["for 64 MiB       ", "  to move        ", "  in pools       "] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
    let (request, _) = told("999999G");
    assert!(request["pages_to_move"].is_null() && request["verdict"] == "no", "{request}");
    assert_eq!(run(&["status", "--for", "0"]).status.code(), Some(2));
}

#[test]
fn status_has_each_node_and_is_no_longer_for_one() {
    let value: Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    let nodes = value["by_node"].as_array().unwrap();
    let numbers: Vec<u64> = nodes.iter().map(|node| node["node"].as_u64().unwrap()).collect();
    let with_memory: Vec<u64> = numa::with_memory().iter().map(|node| node.0.into()).collect();
    if nodes.is_empty() {
        return println!("skipped: the kernel lists no nodes");
    }
    assert_eq!(numbers, with_memory);
    for node in nodes {
        let of = |name: &str| node[name].as_u64().unwrap_or_else(|| panic!("{name}: {node}"));
        assert!(0 < of("available_bytes") && of("available_bytes") <= of("total_bytes"), "{node}");
        assert!(of("largest_free_block_bytes") <= of("total_bytes"), "{node}");
        assert_eq!(node["pools"].as_array().unwrap().len(), sizes().len());
        let hidden = value["longest_free_run_bytes"].is_null();
        assert_eq!(node["longest_free_run_bytes"].is_null(), hidden, "{node}");
        assert_eq!(node["longest_pool_run_bytes"].is_null(), hidden, "{node}");
    }
    let text = ok(&["status"]);
    let lines = text.lines().filter(|line| line.starts_with("node ")).count();
    assert_eq!(lines, if nodes.len() > 1 { nodes.len() } else { 0 }, "{text}");
}

/// Runs the command where the kernel's files tell of two nodes; `None` if this user may not mount
/// them.
fn on_two_nodes(args: &[&str]) -> Option<Output> {
    const MOUNTS: &str = "for name in sys/devices/system/node proc/buddyinfo proc/zoneinfo; do \
        mount --bind \"$0/$name\" \"/$name\" || exit 99; done; exec \"$@\"";
    let files = two_nodes();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNTS]).arg(files.path()).current_dir("/");
    let output = command.arg(env!("CARGO_BIN_EXE_glebe")).arg("contig").args(args).output().ok()?;
    let is_refused = output.status.code() == Some(99) || output.stderr.starts_with(b"unshare: ");
    if is_refused {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
    }
    (!is_refused).then_some(output)
}

#[test]
fn two_nodes_are_shown_each_by_itself() {
    let Some(status) = on_two_nodes(&["status"]) else { return };
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains("NUMA nodes       3, numbers 0, 1, 2\nnode 0  "), "{text}");
    let of = |start: &str| text.lines().position(|line| line.starts_with(start)).unwrap();
    let (first, last) =
        (of("node 0           110 KiB avail"), of("node 2           6.8 MiB avail"));
    if sizes().contains(&PageSize::new(2 << 20).unwrap()) {
        let lines: Vec<&str> = text.lines().collect();
        let first =
            lines[first..last].contains(&"  hugetlb 2 MiB  64 pages (128 MiB), 8 free, 0 surplus");
        let last =
            lines[last..].contains(&"  hugetlb 2 MiB  32 pages (64 MiB), 32 free, 6 surplus");
        assert!(first && last, "{text}");
    }
    let value = on_two_nodes(&["status", "--json"]).unwrap();
    let value: Value = serde_json::from_slice(&value.stdout).unwrap();
    assert_eq!(
        (&value["nodes"], value["by_node"][1]["node"].as_u64()),
        (&json!([0, 1, 2]), Some(2))
    );
    let map = on_two_nodes(&["map"]).unwrap();
    if map.status.success() {
        let text = String::from_utf8(map.stdout).unwrap();
        let nodes: Vec<&str> = text.lines().filter(|line| line.starts_with("node ")).collect();
        let border = Bytes::new(page_size().bytes().get() << 18);
        assert!(nodes.len() == 2, "{text}");
        assert!(
            nodes[0].starts_with(&format!("node 0: 0 B to {border}; longest free run ")),
            "{text}"
        );
        assert!(nodes[1].starts_with(&format!("node 2: {border} to ")), "{text}");
        let map = on_two_nodes(&["map", "--json"]).unwrap();
        let value: Value = serde_json::from_slice(&map.stdout).unwrap();
        let place = |node: usize, end: &str| value["by_node"][node]["places"][0][end].as_u64();
        assert_eq!(place(0, "start_bytes"), Some(0), "{value}");
        assert_eq!(place(0, "end_bytes"), Some(border.get()), "{value}");
        assert_eq!(place(1, "start_bytes"), Some(border.get()), "{value}");
    }
}

#[test]
fn explain_answers_for_each_of_two_nodes() {
    let Some(both) = on_two_nodes(&["explain", "999999G"]) else { return };
    let text = String::from_utf8(both.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("on node ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("on node 0: no: "), "{text}");
    // The kernel itself knows nothing of node 2.
    let denied = "on node 2: no: this process may not use memory of node 2 (cpuset.mems)";
    assert_eq!(lines[1], denied);
    let one = on_two_nodes(&["explain", "999999G", "--node", "0"]).unwrap();
    let said = String::from_utf8(one.stdout).unwrap();
    assert!(said.starts_with("no: 976.6 TiB in one piece on node 0 cannot be had now\n"), "{said}");
    assert!(said.contains("hugepages=0:") || said.contains("a limit"), "{said}");
    let none = on_two_nodes(&["explain", "1", "--node", "7"]).unwrap();
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(said.contains("node 7 is not online; those that are: 0, 1, 2"), "{said}");
}

#[test]
fn explain_answers_for_a_node_and_in_json() {
    let is_allowed = |node: &Node| numa::allowed().is_none_or(|all| all.contains(node));
    for node in numa::with_memory().into_iter().filter(is_allowed) {
        let number = node.0.to_string();
        let text = ok(&["explain", "1", "--node", &number]);
        assert!(text.starts_with(&format!("yes: 1 B in one piece on {node} can be")), "{text}");
        let value: Value =
            serde_json::from_str(&ok(&["explain", "1", "--node", &number, "--json"])).unwrap();
        assert_eq!((&value["verdict"], &value["node"]), (&"now".into(), &node.0.into()));
        assert!(value["by_node"].as_array().unwrap().is_empty() && value["tried"].is_null());
        let no = run(&["explain", "999999G", "--node", &number, "--json"]);
        assert!(refusal(&no).contains(&format!("in one piece on {node} cannot be had now")));
        let value: Value = serde_json::from_slice(&no.stdout).unwrap();
        assert_eq!(
            (&value["verdict"], &value["len_bytes"]),
            (&"no".into(), &(999_999_u64 << 30).into())
        );
    }
    let whole: Value = serde_json::from_str(&ok(&["explain", "1", "--json"])).unwrap();
    let of_nodes = whole["by_node"].as_array().unwrap().len();
    let nodes = numa::with_memory().len();
    assert_eq!(of_nodes, if nodes > 1 { nodes } else { 0 }, "{whole}");
    assert!(whole["node"].is_null(), "{whole}");
    let missing = refusal(&run(&["explain", "1", "--node", "1000000"]));
    assert!(missing.contains("1000000") && missing.contains("not online"), "{missing}");
    assert_eq!(run(&["explain", "1", "--node", "x"]).status.code(), Some(2));
}

#[test]
fn what_is_tried_on_a_node_is_there() {
    let scratch = Scratch::new("contig-try-node");
    for node in numa::with_memory() {
        let file = scratch.path().join(format!("{}.json", node.0));
        let (file, number) = (file.to_str().unwrap(), node.0.to_string());
        let args = ["explain", "64K", "--try", "--node", &number, "--json", "--certificate", file];
        let output = run(&args);
        if output.stdout.is_empty() {
            println!("skipped: {node}: {}", refusal(&output));
            continue;
        }
        let value: Value = serde_json::from_str(&tried(&output)).unwrap();
        assert!(value["tried"]["len_bytes"].as_u64().unwrap() >= 64 << 10, "{value}");
        assert!(value["tried"]["source"].is_string() && value["tried"]["held_by"].is_string());
        let told: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let nodes = told["nodes"].as_array().unwrap();
        assert!(nodes.iter().all(|part| part["node"] == node.0), "{told}");
    }
}

#[test]
fn explain_takes_nothing_and_says_why_not() {
    let output = run(&["explain", "999999G"]);
    assert!(refusal(&output).contains("cannot be had now"));
    let why = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(why.starts_with("no: 976.6 TiB in one piece cannot be had now\n"), "{why}");
    // One page always holds a run of 1 byte.
    let one = ok(&["explain", "1"]);
    assert!(one.starts_with("yes: 1 B in one piece can be had now\n    within one page"), "{one}");
    for bad in ["0", "-1", "x", "1E"] {
        assert_eq!(run(&["explain", bad]).status.code(), Some(2), "{bad}");
    }
    assert_eq!(run(&["explain", "1M", "--certificate", "x"]).status.code(), Some(2));
}

/// Returns what `explain --try` printed, with status 0 or 1.
fn tried(output: &Output) -> String {
    if !output.status.success() {
        assert!(refusal(output).contains(" was not had in one piece"), "{output:?}");
    }
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_try_that_gets_shorter_runs_has_status_1() {
    let _turn = Turn::shared(POOL);
    for len in ["1", "3072K", "64M"] {
        let output = run(&["explain", len, "--try", "--json"]);
        let value: Value = serde_json::from_str(&tried(&output)).unwrap();
        let (wanted, of) = (value["len_bytes"].as_u64().unwrap(), &value["tried"]);
        let is_short = of["longest_run_bytes"].as_u64().unwrap() < wanted
            && of["proof"] == "proved by page frame numbers";
        assert_eq!(output.status.code(), Some(i32::from(is_short)), "{len}: {value}");
    }
}

#[test]
fn a_try_without_pools_says_that_the_run_did_not_come() {
    let mount = "mount -t tmpfs none /sys/kernel/mm/hugepages || exit 99; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", mount, "-", env!("CARGO_BIN_EXE_glebe")]);
    let output = command.args(["contig", "explain", "64M", "--try"]).output().unwrap();
    if output.status.code() == Some(99) || output.stderr.starts_with(b"unshare: ") {
        println!("skipped: {output:?}");
        return;
    }
    let text = tried(&output);
    let (before, longest) = text.split_once("longest run ").expect(&text);
    assert!(before.starts_with("no: 64 MiB in one piece cannot be had now\n"), "{text}");
    // Pages of 2 MiB may be neighbours by luck.
    if text.contains("proved by page frame numbers") && !longest.starts_with("64 MiB\n") {
        let longest = longest.lines().next().unwrap();
        let why = format!("glebe: 64 MiB was not had in one piece; the longest run is {longest}");
        assert!(refusal(&output).starts_with(&why), "{output:?}");
    } else {
        println!("skipped: the frames are hidden, or the run came: {text}");
    }
}

#[test]
fn what_is_tried_has_a_certificate_for_its_owner() {
    let scratch = Scratch::new("contig-try");
    let file = scratch.path().join("certificate.json");
    let output = run(&["explain", "3072K", "--try", "--certificate", file.to_str().unwrap()]);
    let text = tried(&output);
    assert!(text.contains("tried: ") && text.contains("held by "), "{text}");
    let value: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(value["len_bytes"].as_u64().unwrap() >= 3072 << 10);
    let covered: u64 = value["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["len_bytes"].as_u64().unwrap())
        .sum();
    assert!(covered <= value["len_bytes"].as_u64().unwrap());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_dry_run_and_a_boot_line_write_nothing() {
    let Some(pool) = pool() else {
        println!("skipped: no pool");
        return;
    };
    let text = ok(&["reserve", "64M", "--dry-run"]);
    let path = pool.path().display().to_string();
    assert!(text.starts_with("would write ") && text.contains(&path), "{text}");
    let text = ok(&["reserve", "2G", "--page", "1G", "--at-boot"]);
    assert!(text.contains("hugepagesz=1G hugepages=2") && text.contains("[Install]"), "{text}");
    let text = ok(&["reserve", "64M", "--page", "2M", "--at-boot"]);
    assert!(text.contains("hugepagesz=2M hugepages=32"), "{text}");
    assert!(refusal(&run(&["reserve", "1M", "--page", "16G"])).contains("no hugetlb pages of"));
    assert_eq!(run(&["reserve", "1M", "--dry-run", "--at-boot"]).status.code(), Some(2));
}

/// Returns the output of a release that may give back fewer pages than requested.
fn ok_or_short(args: &[&str]) -> String {
    let output = run(args);
    if !output.status.success() {
        assert!(refusal(&output).contains("in use or promised"));
    }
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_change_that_a_kill_cut_short_is_mended_and_told() {
    let Some(pool) = pool().filter(Pool::is_writable) else {
        println!("skipped: no pool that can be changed");
        return;
    };
    if is_child() {
        let lock = PoolLock::acquire().unwrap();
        lock.with_surplus(&pool, 1000, || -> Result<(), OsError> {
            println!("inside");
            loop {
                std::thread::park();
            }
        })
        .unwrap();
    }
    let limit = || {
        let _lock = PoolLock::acquire().unwrap();
        pool.overcommit().unwrap()
    };
    let before = limit();
    let kill = || {
        let mut child = child_of("contig::a_change_that_a_kill_cut_short_is_mended_and_told");
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_inside = lines.any(|line| line.unwrap().ends_with("inside"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_inside);
    };
    let scratch = Scratch::new("contig-mended");
    let file = scratch.path().join("pages").to_string_lossy().into_owned();
    // Meanwhile another program may raise the limit for a moment.
    let is_mended = |_| {
        kill();
        assert!(ok(&["release", "--record", &file]).starts_with("0 of 0 pages"));
        pool.overcommit().unwrap() == before
    };
    assert!((0..8).any(is_mended), "also an empty record has the change mended");
    kill();
    // Another glebe process may undo the change first.
    let text = ok(&["status"]);
    if !text.contains("a process ended while it had nr_overcommit_hugepages") {
        println!("skipped: another took the lock first: {text}");
    }
    assert_eq!(limit(), before);
}

#[test]
fn what_is_reserved_is_there_for_everybody() {
    let Some(pool) = pool() else {
        println!("skipped: no pool");
        return;
    };
    if !pool.is_writable() {
        assert!(refusal(&run(&["reserve", "4M"])).contains("cannot be changed"));
        return;
    }
    let _turn = Turn::alone(POOL);
    let pages = 2;
    let len = (pool.size().bytes().get() * pages).to_string();
    let output = run(&["reserve", &len]);
    if !output.status.success() {
        println!("skipped: {}", refusal(&output));
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("wrote ") && text.contains("2 added"), "{text}");
    // `reserve` also made the surplus pages that programs use (`others`) persistent. The loop
    // repeats, because `others` become free only when their users end.
    let others = text
        .lines()
        .find_map(|line| line.split_once(" more that programs use now")?.0.parse::<u64>().ok());
    let mut left = pages + others.unwrap_or(0);
    let begin = Instant::now();
    while left > 0 {
        let dry = ok_or_short(&["release", &len, "--dry-run"]);
        assert!(dry.starts_with("would write ") || dry.starts_with("wrote nothing"), "{dry}");
        let len = (pool.size().bytes().get() * left).to_string();
        let said = ok_or_short(&["release", &len]);
        let given = said.lines().find_map(|line| {
            line.split(", ").nth(1)?.split_once(" given back")?.0.parse::<u64>().ok()
        });
        left -= given.unwrap_or(0);
        assert!(
            begin.elapsed() < slowed(Duration::from_secs(60)),
            "{left} pages are left in the pool"
        );
    }
    let too_much = run(&["reserve", "999999G"]);
    assert!(refusal(&too_much).contains("available"));
}

/// Releases the pages on record, also if the test fails.
struct OnRecord<'a>(&'a str);

impl Drop for OnRecord<'_> {
    fn drop(&mut self) {
        run(&["release", "--record", self.0]);
    }
}

#[test]
fn only_pages_on_record_go_and_those_in_use_stay_on_record() {
    let Some(pool) = pool().filter(Pool::is_writable) else {
        return println!("skipped: no pool that can be changed");
    };
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("contig-record");
    let file = scratch.path().join("pages").to_string_lossy().into_owned();
    let recorded = OnRecord(&file);
    let release = || ok(&["release", "--record", &file]);
    assert!(release().starts_with("0 of 0 pages"), "nothing was added");
    let (page, before) = (pool.size().bytes(), pool.counts().unwrap());
    if before.surplus > 0 {
        return println!("skipped: a program uses surplus pages");
    }
    for _ in 0..2 {
        let output = run(&["reserve", &(page.get() * 2).to_string(), "--record", &file]);
        if !output.status.success() {
            return println!("skipped: {}", refusal(&output));
        }
    }
    let options = Contig::options().source(Source::Hugetlb(pool.size())).grow_pool(false);
    let all = Bytes::new(page.get() * pool.counts().unwrap().available());
    let held = options.build(all).unwrap();
    assert!(release().starts_with("0 of "), "all are in use");
    drop(held);
    let few = ok(&["release", &page.get().to_string(), "--record", &file]);
    assert!(few.starts_with("1 of "), "{few}");
    let said = release();
    assert!(said.ends_with("; 0 stay counted\n"), "{said}");
    assert_eq!(pool.counts().unwrap().persistent(), before.persistent());
    drop(recorded);
    let other = ["release", "--record", &file, "--page", "1G"];
    assert!(run(&other).status.success(), "an empty record is of any size");
    fs::write(&file, "x y z").unwrap();
    assert!(release().starts_with("0 of 0 pages"), "of another boot");
    assert_eq!(run(&["release"]).status.code(), Some(2));
}

/// Records what killed commands leave, because a kill at that moment cannot be timed.
#[test]
fn a_record_of_a_killed_command_counts_what_the_pool_shows() {
    let Some(pool) = pool().filter(Pool::is_writable) else {
        return println!("skipped: no pool that can be changed");
    };
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("contig-cut-short");
    let file = scratch.path().join("pages").to_string_lossy().into_owned();
    let recorded = OnRecord(&file);
    let (page, before) = (pool.size().bytes(), pool.counts().unwrap());
    let output = run(&["reserve", &(page.get() * 4).to_string(), "--record", &file]);
    let is_shared = String::from_utf8_lossy(&output.stdout).contains("more that programs use");
    if is_shared {
        wait_until("programs end", slowed(Duration::from_secs(20)), || {
            ok(&["release", "--record", &file]).ends_with("; 0 stay counted\n")
        });
    }
    if before.surplus > 0 || is_shared || !output.status.success() {
        return println!("skipped: surplus pages, or no memory: {output:?}");
    }
    let text = fs::read_to_string(&file).unwrap();
    let boot = text.split(' ').next().unwrap();
    let write = |pages: u64, before: u64, by: i64| {
        let line = format!("{boot} {} {pages} {before} {by:+}\n", page.get());
        fs::write(&file, line).unwrap();
    };
    let release =
        |pages: u64| ok(&["release", &(page.get() * pages).to_string(), "--record", &file]);
    let (own, now) = (before.persistent(), pool.counts().unwrap().persistent());
    assert_eq!(now, own + 4);
    write(0, own, 4);
    assert_eq!(left(&release(1)), 3, "all had come");
    write(3, own + 3, 8);
    assert_eq!(left(&release(1)), 2, "none had come");
    write(3, own + 3, -2);
    assert_eq!(left(&release(1)), 1, "one was gone");
    write(1, own + 1, -1);
    assert_eq!(left(&release(1)), 0, "none was gone");
    assert_eq!(pool.counts().unwrap().persistent(), own);
    drop(recorded);
}

#[test]
fn a_killed_reservation_leaves_no_page() {
    let Some(pool) = pool().filter(Pool::is_writable) else {
        return println!("skipped: no pool that can be changed");
    };
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("contig-killed");
    let file = scratch.path().join("pages").to_string_lossy().into_owned();
    let _recorded = OnRecord(&file);
    let persistent = || pool.counts().unwrap().persistent();
    let before = PoolLock::acquire().map(|_lock| persistent()).unwrap();
    // A record names its change until the change is made.
    let is_under_way = || fs::read_to_string(&file).is_ok_and(|text| text.contains('+'));
    for nth in 0..20 {
        // The first child is killed while it waits for the lock, and half of the others in the
        // middle of the change, if it is seen; the rest at any moment.
        let held = (nth == 0).then(|| PoolLock::acquire().unwrap());
        let mut child = command(&["reserve", "64M", "--record", &file]);
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        let waits = nth % 2 == 0 && held.is_none();
        while waits && child.try_wait().unwrap().is_none() && !is_under_way() {}
        // Long enough for a child that needs no lock.
        let time = held.as_ref().map_or(nth * 100, |_| 300_000);
        std::thread::sleep(Duration::from_micros(time));
        child.kill().unwrap();
        let by = child.wait().unwrap().signal();
        assert!(held.is_none() || by == Some(9), "it needs no lock");
        drop(held);
        // Other programs may use pages for a moment.
        wait_until("the pool is as before", slowed(Duration::from_secs(20)), || {
            let said = ok(&["release", "--record", &file]);
            let _lock = PoolLock::acquire().unwrap();
            said.ends_with("; 0 stay counted\n") && persistent() == before
        });
    }
}

/// Returns the pages that a release left on record.
fn left(said: &str) -> u64 {
    let words = said.split_once("; ").and_then(|(_, rest)| rest.split_once(" stay"));
    words.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap()
}

fn on_line() -> Option<Bytes> {
    let blocks = MemoryBlocks::machine().ok()?;
    let all = blocks.list().unwrap();
    let online = all.iter().filter(|block| block.state == BlockState::Online).count() as u64;
    Some(Bytes::new(online * blocks.size().get()))
}

/// Checks that the runs of a map are in order and make up all memory.
fn check_map(map: &Value) {
    let number = |value: &Value| value.as_u64().unwrap();
    let (mut end, mut sum) = (0, 0);
    for run in map["runs"].as_array().unwrap() {
        assert!(number(&run["start_bytes"]) >= end, "{run} overlaps the run before");
        end = number(&run["start_bytes"]) + number(&run["len_bytes"]);
        sum += number(&run["len_bytes"]);
    }
    assert_eq!(sum, number(&map["present_bytes"]));
    assert_eq!(sum, map["uses_bytes"].as_object().unwrap().values().map(number).sum::<u64>());
    if let Some(bytes) = on_line() {
        assert_eq!(sum, bytes.get());
    }
    let nodes = map["by_node"].as_array().unwrap();
    assert_eq!(nodes.len(), numa::with_memory().len());
    let longest = nodes.iter().map(|node| number(&node["longest_free_run_bytes"])).max();
    assert!(longest.unwrap_or_default() <= number(&map["longest_free_run_bytes"]), "{longest:?}");
}

#[test]
fn the_map_is_a_picture_or_a_reason() {
    let scratch = Scratch::new("contig-map");
    let file = scratch.path().join("map.svg");
    let output = run(&["map", file.to_str().unwrap()]);
    if output.status.success() {
        let svg = fs::read_to_string(&file).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("Physical memory"));
    } else {
        assert!(refusal(&output).contains("/proc/kpage"));
        println!("skipped: frames are hidden");
    }
    assert_eq!(run(&["map", "/dev/null/x.svg"]).status.code(), Some(1));
    let both = run(&["map", "--json", file.to_str().unwrap()]);
    assert_eq!(both.status.code(), Some(2), "{}", String::from_utf8_lossy(&both.stderr));
    let value = command(&["map", "--json"]).output().unwrap();
    if output.status.success() {
        check_map(&serde_json::from_slice(&value.stdout).unwrap());
    } else {
        assert!(refusal(&value).contains("/proc/kpage"));
    }
    let text = command(&["map"]).env("COLUMNS", "60").output().unwrap();
    if output.status.success() {
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.starts_with("Physical memory\n") && text.contains("  . free"), "{text}");
        if let Some(bytes) = on_line() {
            let told = text.split_once(", in ").unwrap().1.split_once(". ").unwrap().0;
            assert_eq!(told, bytes.to_string(), "{text}");
        }
        let rows: Vec<_> = text.lines().skip_while(|line| !line.contains(", a row ")).collect();
        assert!(rows.len() > 1 && rows.iter().all(|line| line.len() <= 60), "{text}");
    } else {
        assert!(refusal(&text).contains("/proc/kpage"));
    }
}

#[test]
fn a_machine_without_a_bank_is_told_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    let output = command.args(["bank", "status"]).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        println!("skipped: {}", refusal(&output));
        return;
    }
    let has_bank = text.lines().any(|line| {
        line.starts_with("bank  ") || line.ends_with("only root can read how much of it is one")
    });
    assert_eq!(text.contains("no bank: nothing is set aside"), !has_bank, "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("movable  ")), "{text}");
}

#[test]
fn nobody_is_told_whether_there_can_be_a_bank() {
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let copy = Reachable::new();
    let mut command = Command::new(copy.program());
    command.args(["bank", "status"]).current_dir("/").uid(NOBODY).gid(NOBODY);
    let Ok(output) = command.output() else {
        println!("skipped: nobody cannot run this program");
        return;
    };
    if on_line().is_none() {
        assert!(!output.status.success(), "{output:?}");
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let [first, last] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    let is_empty = last.starts_with("movable        0 B of ");
    assert_eq!(first.starts_with("no bank: "), is_empty, "{text}");
    assert_eq!(first.contains("may be a bank"), !is_empty, "{text}");
}

#[test]
fn nobody_is_told_what_can_be_known() {
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    // Runs a copy, because `nobody` may lack access to the program's directory.
    let copy = Reachable::new();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(copy.program());
        command.arg("contig").args(args).current_dir("/").uid(NOBODY).gid(NOBODY).output()
    };
    let Ok(status) = as_nobody(&["status"]) else {
        println!("skipped: nobody cannot run this program");
        return;
    };
    assert!(status.status.success(), "{status:?}");
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(said.contains("runs of pools    hidden"), "{said}");
    // The kernel's free lists know only the shortest of four lengths.
    assert_eq!(said.matches("unknown without root\n").count(), 3, "{said}");
    let hidden = as_nobody(&["explain", "64M"]).unwrap();
    let text = String::from_utf8_lossy(&hidden.stdout).into_owned();
    // `explain` may answer `unknown` if pools have 64 MiB idle, because page frame numbers, which
    // would prove a run, are hidden from `nobody`.
    match hidden.status.success() {
        true => assert!(
            text.starts_with("unknown: whether 64 MiB") || text.starts_with("yes: "),
            "{text}"
        ),
        false => assert!(text.starts_with("no: 64 MiB") && text.contains("as root: "), "{text}"),
    }
    let tried = as_nobody(&["explain", "64K", "--try"]).unwrap();
    let text = String::from_utf8_lossy(&tried.stdout).into_owned();
    assert!(tried.status.success(), "{tried:?}");
    assert!(text.contains("contiguity proved only within"), "{text}");
    assert!(refusal(&as_nobody(&["reserve", "4M"]).unwrap()).contains("cannot be changed"));
    assert!(refusal(&as_nobody(&["release", "all"]).unwrap()).contains("cannot be changed"));
    let file = copy.program().with_file_name("map.svg");
    assert!(refusal(&as_nobody(&["map", file.to_str().unwrap()]).unwrap()).contains("/proc/kpage"));
}
