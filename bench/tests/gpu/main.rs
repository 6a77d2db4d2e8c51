//! `glebe-bench gpu` as a user meets it: without a driver, and with one that the test builds, which
//! keeps count of what it hands out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::{tempdir, TempDir};

/// A directory with the driver; nothing where there is no C compiler.
fn driver() -> Option<TempDir> {
    let (dir, source) = (tempdir().unwrap(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    cc.arg(dir.path().join("libcuda.so.1")).arg(Path::new(source).join("fake_driver.c"));
    match cc.output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(dir)
        }
        Err(why) => {
            println!("skipped: no C compiler: {why}");
            None
        }
    }
}

/// Runs the benchmark with the driver of `dir`; its table, its JSON, and what the driver counted.
fn bench(dir: &Path, settings: &[(&str, &str)]) -> (Output, Value, String) {
    let (json, counts) = (dir.join("json"), dir.join("counts"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(["gpu", "--quick", "--largest-mib", "16", "--json"]).arg(&json);
    command.env("LD_LIBRARY_PATH", dir).env("FAKE_COUNTS", &counts);
    let output = command.envs(settings.iter().copied()).output().expect("the program starts");
    let json = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let counts = fs::read_to_string(counts).unwrap_or_default();
    (output, json, counts)
}

#[test]
fn a_machine_without_a_driver_is_told_so_and_nothing_fails() {
    if Path::new("/dev/nvidiactl").exists() {
        return println!("skipped: there is a driver");
    }
    let (output, json, _) = bench(tempdir().unwrap().path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("no CUDA driver: libcuda.so.1"), "{text}");
    assert!(json["checks"]["wrong_bytes"].is_null(), "{json}");
    assert!(json["ratios"]["to_device_8m_vs_memalign"].is_null(), "{json}");
}

#[test]
fn every_contestant_copies_and_gives_back_what_it_had() {
    let Some(dir) = driver() else { return };
    let (output, json, counts) = bench(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    for (case, who) in ["to_device_65536", "to_host_8388608", "ready_16m"]
        .into_iter()
        .flat_map(|case| ["memalign", "glebe", "cuMemHostAlloc"].map(|who| (case, who)))
    {
        let mut rows = json["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["case"] == case && row["who"] == who);
        assert!(row.is_some_and(|row| row["runs"] == 2), "{case}, {who}: {json}");
    }
    assert_eq!(json["checks"]["wrong_bytes"], 0);
    for ratio in ["to_device_8m_vs_cuda_pinned", "to_host_8m_vs_memalign", "ready_vs_cuda_pinned"] {
        assert!(json["ratios"][ratio].as_f64().is_some_and(|n| n > 0.0), "{ratio} in {json}");
    }
    assert!(counts.starts_with("left 0 0 0 0\n"), "{counts}");
    let made = counts.lines().find_map(|line| line.strip_prefix("made ")).unwrap();
    let made: Vec<u64> = made.split(' ').map(|n| n.parse().unwrap()).collect();
    assert!(made[0] >= 4 && made[1] == 2, "two contestants at least, twice: {counts}");
}

#[test]
fn what_the_driver_refuses_is_said_and_what_was_had_goes_back() {
    let Some(dir) = driver() else { return };
    for call in ["cuInit", "cuMemAlloc", "cuMemHostRegister", "cuMemcpyHtoD"] {
        let (output, json, counts) = bench(dir.path(), &[("FAKE_REFUSE", call)]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{call}: {output:?}");
        let said = format!("{call}: CUDA_ERROR_NOT_SUPPORTED (801)");
        assert!(text.contains(&said), "{call}: {text}");
        assert!(json["ratios"]["to_device_8m_vs_memalign"].is_null(), "{call}: {json}");
        assert!(counts.starts_with("left 0 0 0 0\n"), "{call}: {counts}");
    }
    let (output, json, counts) = bench(dir.path(), &[("FAKE_DEVICES", "0")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("lists no device"), "{output:?}");
    assert!(json["checks"]["wrong_bytes"].is_null(), "{json}");
    assert!(counts.starts_with("left 0 0 0 0\nmade 0 0\n"), "{counts}");
}

#[test]
fn a_wrong_byte_is_seen_and_fails_the_run() {
    let Some(dir) = driver() else { return };
    let (output, json, _) = bench(dir.path(), &[("FAKE_SPOIL", "1")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(json["checks"]["wrong_bytes"].as_u64().is_some_and(|wrong| wrong > 0), "{json}");
}
