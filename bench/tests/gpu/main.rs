//! `glebe-bench gpu` as a user meets it: without a driver, and with one that the test builds, which
//! keeps count of what it hands out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::tempdir;

/// Builds the driver in `dir`; false where there is no C compiler.
fn build(dir: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/fake_driver.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    match cc.arg(dir.join("libcuda.so.1")).arg(source).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            true
        }
        Err(why) => {
            println!("skipped: no C compiler: {why}");
            false
        }
    }
}

/// Runs the benchmark with the driver of `dir`; its JSON, and what the driver counted.
fn bench(dir: &Path, settings: &[(&str, &str)]) -> (Output, String, String) {
    let (json, counts) = (dir.join("json"), dir.join("counts"));
    for path in [&json, &counts] {
        let _ = fs::remove_file(path);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(["gpu", "--quick", "--largest-mib", "16", "--json"]).arg(&json);
    command.env("LD_LIBRARY_PATH", dir).env("FAKE_COUNTS", &counts);
    command.envs(settings.iter().copied());
    let output = command.output().expect("the program starts");
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    (output, text(&json), text(&counts))
}

fn value<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\": "))?;
    rest.split([',', '\n']).next()
}

#[test]
fn a_machine_without_a_driver_is_told_so_and_nothing_fails() {
    if Path::new("/dev/nvidiactl").exists() {
        return println!("skipped: there is a driver");
    }
    let scratch = tempdir().unwrap();
    let (output, json, _) = bench(scratch.path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("no CUDA driver: libcuda.so.1"), "{text}");
    assert_eq!(value(&json, "wrong_bytes"), Some("null"), "{json}");
    assert_eq!(value(&json, "to_device_8m_vs_memalign"), Some("null"), "{json}");
}

#[test]
fn every_contestant_copies_and_gives_back_what_it_had() {
    let scratch = tempdir().unwrap();
    if !build(scratch.path()) {
        return;
    }
    let (output, json, counts) = bench(scratch.path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("Device: Fake 70, driver 12.4."), "{text}");
    for row in ["to_device_4096 ", "to_host_8388608 ", "register_16m ", "ready_16m "] {
        for who in ["memalign ", "glebe "] {
            let line = text.lines().find(|line| line.starts_with(row) && line.contains(who));
            assert!(line.is_some_and(|line| line.contains("  2")), "{row}, {who}: {text}");
        }
    }
    assert!(text.contains("left out: --largest"), "32 GiB: {text}");
    assert_eq!(value(&json, "wrong_bytes"), Some("0"), "{json}");
    for ratio in ["to_device_8m_vs_cuda_pinned", "to_host_8m_vs_memalign", "ready_vs_cuda_pinned"] {
        let number = value(&json, ratio).and_then(|text| text.parse::<f64>().ok());
        assert!(number.is_some_and(|number| number > 0.0), "{ratio} in {json}");
    }
    assert!(counts.starts_with("left 0 0 0 0 0\n"), "{counts}");
    let made = counts.lines().find_map(|line| line.strip_prefix("made "));
    let made: Vec<u64> = made.unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    assert!(made[0] >= 8 && made[1] == 4, "two contestants and two sizes, twice: {counts}");
}

#[test]
fn what_the_driver_refuses_is_said_and_what_was_had_goes_back() {
    let scratch = tempdir().unwrap();
    if !build(scratch.path()) {
        return;
    }
    for call in ["cuInit", "cuMemAlloc", "cuStreamCreate", "cuMemHostRegister", "cuMemcpyHtoDAsync"]
    {
        let (output, json, counts) = bench(scratch.path(), &[("FAKE_REFUSE", call)]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{call}: {output:?}");
        let said = format!("{call}: CUDA_ERROR_NOT_SUPPORTED (801)");
        assert!(text.contains(&said), "{call}: {text}");
        assert_eq!(value(&json, "to_device_8m_vs_memalign"), Some("null"), "{call}: {json}");
        assert!(counts.starts_with("left 0 0 0 0 0\n"), "{call}: {counts}");
    }
    let (output, json, counts) = bench(scratch.path(), &[("FAKE_DEVICES", "0")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("lists no device"), "{output:?}");
    assert_eq!(value(&json, "wrong_bytes"), Some("null"), "{json}");
    assert!(counts.starts_with("left 0 0 0 0 0\nmade 0 0\n"), "{counts}");
}

#[test]
fn a_wrong_byte_is_seen_and_fails_the_run() {
    let scratch = tempdir().unwrap();
    if !build(scratch.path()) {
        return;
    }
    let (output, json, _) = bench(scratch.path(), &[("FAKE_SPOIL", "1")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wrong = value(&json, "wrong_bytes").and_then(|text| text.parse::<u64>().ok());
    assert!(wrong.is_some_and(|wrong| wrong > 0), "{json}");
}
