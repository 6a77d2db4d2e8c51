//! Tests that quick runs report the names that the project's targets refer to, and that checks
//! hold.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use glebe_testing::Scratch;
use serde_json::Value;

#[path = "../../../crates/glebe-preload/tests/it/libraries.rs"]
mod libraries;

/// Unprivileged: the kernel's overflow uid.
const NOBODY: u32 = 65_534;

const SUITE: &str = "suite";

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(args).output().expect("the program starts")
}

fn report(program: &Path, dir: &Path, args: &[&str], uid: Option<u32>) -> Value {
    let json = dir.join(format!("{}.json", uid.unwrap_or_default()));
    let mut command = Command::new(program);
    command.args(args).args(["--quick", "--json"]).arg(&json);
    command.env("MIMALLOC_BENCH", dir.join(SUITE));
    if let Some(uid) = uid {
        // The program makes its folder for statistics in TMPDIR.
        command.uid(uid).gid(uid).current_dir("/").env("TMPDIR", dir);
    }
    let output = command.output().expect("the program starts");
    let text = fs::read_to_string(&json).unwrap_or_default();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_str(&text).unwrap()
}

/// Asserts that all names exist. A row may say why figures are missing; ratios and checks may be
/// null.
fn has(report: &Value, cases: &[&str], ratios: &[&str], checks: &[&str]) {
    let rows = report["rows"].as_array().unwrap().iter();
    let had: BTreeSet<&str> = rows.map(|row| row["case"].as_str().unwrap()).collect();
    cases.iter().for_each(|case| assert!(had.contains(case), "no row {case}: {had:?}"));
    for (part, names) in [("ratios", ratios), ("checks", checks)] {
        names.iter().for_each(|n| assert!(report[part].get(n).is_some(), "no {n}: {report}"));
    }
}

#[test]
fn contig_for_root_and_for_others() {
    let cases = [
        "random_read_64m",
        "stride_4160_64m",
        "stream_copy_64m",
        "obtain_64m",
        "direct_read_65536",
        "register_4m",
        "map_2m",
        "map_128m",
        "required_8m",
        "page_cache_lost",
        "given_back_ms",
        "evacuate_128m",
    ];
    let ratios = [
        "random_read_vs_memalign",
        "stream_vs_memalign",
        "populate_vs_zeroing_cpu",
        "populate_threads_2_vs_1_cpu",
        "longest_run_vs_optimum",
        "required_on_demand",
        "default_run_vs_longest",
    ];
    let checks = ["verify_disagreements", "required_failures", "wrong_bytes"];
    let dir = Scratch::readable("keys");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Every user can reach this copy. `cp` makes the copy, because a child of another test could
    // inherit a file that this process writes, and an open file cannot run (ETXTBSY).
    let program = dir.path().join("glebe-bench");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_glebe-bench")).arg(&program).status();
    assert!(copied.unwrap().success());
    let able = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    let others = able.inspect_err(|why| println!("skipped: no other user can be had: {why}"));
    for uid in [None].into_iter().chain(others.ok().map(|_| Some(NOBODY))) {
        let report = report(&program, dir.path(), &["contig"], uid);
        has(&report, &cases, &ratios, &checks);
        for what in &ratios[..2] {
            assert!(report["ratios"][what].as_f64().is_some_and(|ratio| ratio > 0.0), "{what}");
        }
        // Other users see no frames: null, not 0.
        let compared = &report["checks"]["verify_disagreements"];
        assert!(uid.is_none() || compared.is_null(), "{report}");
    }
}

#[test]
fn zpool_of_any_files() {
    let cases = [
        "overhead_final_percent_tree",
        "overhead_random_delete_percent_tree",
        "overhead_final_percent",
        "overhead_random_delete_percent",
        "compaction_pages_per_s",
    ];
    let ratios = [
        "overhead_worst_vs_zram_compacted",
        "store_vs_zram",
        "load_vs_zram",
        "load_vs_codec",
        "callback_32000_vs_clean",
        "insert_remove_vs_best_malloc",
        "threads_2_vs_1_cpu",
    ];
    let dir = Scratch::readable("keys");
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
    let report = report(program, dir.path(), &["zpool", "--tree", tree], None);
    has(&report, &cases, &ratios, &["wrong_bytes"]);
}

#[test]
fn swap_beside_the_kernels_and_nothing_is_lost() {
    let cases = ["fault", "fault_p99", "cold_pin", "hot_pin", "stored_overhead_percent"];
    let others = ["zipf_2x_reads", "seq_2x_writes", "recall_1", "recall_32000", "recall_writeback"];
    let background = ["background", "device_bytes"];
    let cases: Vec<&str> = cases.into_iter().chain(others).chain(background).collect();
    let ratios = [
        "fault_vs_zram_swap",
        "fault_p99_2_threads_vs_zram_swap",
        "cold_pin_vs_zram_fault",
        "zipf_2x_vs_zram_swap",
        "zipf_4x_vs_zram_swap",
        "seq_2x_vs_zram_swap",
        "misses_vs_lru",
        "recall_writethrough_vs_clean",
        "recall_putback_vs_memcpy",
        "device_bytes_writethrough_over_writeback",
    ];
    let dir = Scratch::readable("keys");
    let report = report(Path::new(env!("CARGO_BIN_EXE_glebe-bench")), dir.path(), &["swap"], None);
    has(&report, &cases, &ratios, &["wrong_bytes", "lost_writes"]);
    for ratio in ["recall_writethrough_vs_clean", "recall_putback_vs_memcpy"] {
        assert!(report["ratios"][ratio].as_f64().is_some_and(|ratio| ratio > 0.0), "{report}");
    }
}

#[test]
fn vmap_and_every_answer_is_the_lowest() {
    let cases = ["fix_align_alloc_1e3", "adversary_1e4", "bytes_per_extent_1e4"];
    let ratios = [
        "vs_rbtree_churn_1e4_classes",
        "vs_list_full_fit_alloc_1e3_plain",
        "vs_best_exact_crate_fix_size_alloc_1e4_classes",
        "growth_1e3_to_1e4",
        "adversary_cost",
        "threads_2_vs_1_cpu",
        "view_cost",
    ];
    let dir = Scratch::readable("keys");
    let report = report(Path::new(env!("CARGO_BIN_EXE_glebe-bench")), dir.path(), &["vmap"], None);
    has(&report, &cases, &ratios, &["wrong_answers"]);
    has(&report, &["view_of_1024_scattered_pages"], &[], &[]);
    // Nine cases with two numbers of blocks; all answers were right.
    for (who, exact) in [("glebe", 18), ("linked list", 18), ("vm-allocator", 18)] {
        let told = |row: &&Value| {
            row["who"] == who && row["note"].as_str().is_some_and(|n| n.starts_with("exact: "))
        };
        assert_eq!(report["rows"].as_array().unwrap().iter().filter(told).count(), exact, "{who}");
    }
}

#[test]
fn serve_beside_memcached_or_alone() {
    let (mut cases, mut ratios) = (Vec::new(), Vec::new());
    for op in ["get_100", "set_100", "mg_100", "get_4000", "set_4000", "mg_4000"] {
        for (tls, threads) in [("", ""), ("", "_2_threads"), ("tls_", "")] {
            let [single, batch] = ["", "_x16"].map(|depth| format!("{tls}{op}{depth}{threads}"));
            ratios.push(format!("p99_{single}_vs_memcached"));
            ratios.extend([&single, &batch].map(|case| format!("cpu_{case}_vs_memcached")));
            cases.extend([single, batch]);
        }
    }
    // A request of more than one record of TLS is left out.
    cases.retain(|case| case != "tls_set_4000_x16");
    ratios.retain(|ratio| ratio != "cpu_tls_set_4000_x16_vs_memcached");
    cases.extend(["recall_125m", "hit_under_recall", "idle_1000_bytes"].map(str::to_owned));
    ratios.extend(["hit_ratio_vs_memcached", "items_vs_memcached"].map(str::to_owned));
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    let ratios: Vec<&str> = ratios.iter().map(String::as_str).collect();
    let dir = Scratch::readable("keys");
    let report = report(Path::new(env!("CARGO_BIN_EXE_glebe-bench")), dir.path(), &["serve"], None);
    has(&report, &cases, &ratios, &["wrong_bytes", "failures"]);
    for check in ["wrong_bytes", "failures"] {
        assert_eq!(report["checks"][check], 0, "{report}");
    }
    // With memcached, all ratios are numbers.
    let mut rows = report["rows"].as_array().unwrap().iter();
    let has_peer = rows.any(|row| row["who"] == "memcached" && row["case"] == "items_100");
    for name in ratios {
        let ratio = report["ratios"][name].as_f64();
        assert_eq!(has_peer, ratio.is_some_and(|ratio| ratio > 0.0), "{name}: {report}");
    }
}

fn a_suite(dir: &Path) {
    let folder = dir.join("bench/glibc-bench");
    fs::create_dir_all(&folder).unwrap();
    let text = "#include <stdio.h>\nint main(void) { puts(\"250 iterations\"); return 0; }\n";
    fs::write(folder.join("bench-malloc-thread.c"), text).unwrap();
}

/// Accepts rows that only give a reason, because glebe's wheel may not be installed.
#[test]
fn python_with_the_wheel_or_without() {
    let dir = Scratch::readable("keys");
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let report = report(program, dir.path(), &["python"], None);
    let sizes = |what: &[&str]| -> Vec<String> {
        what.iter().flat_map(|what| ["4k", "1m"].map(|size| format!("{what}_{size}"))).collect()
    };
    let small = sizes(&["put", "get", "get_into"]);
    let mut ratios: Vec<String> = small.iter().map(|case| format!("{case}_vs_lmdb")).collect();
    ratios.push("pipeline_vs_best_lru".to_owned());
    let mut cases: Vec<&str> = small.iter().map(String::as_str).collect();
    cases.push("binding_call");
    let names: Vec<&str> = ratios.iter().map(String::as_str).collect();
    has(&report, &cases, &names, &["kills", "wrong_bytes"]);
    assert!(report["checks"]["wrong_bytes"].as_u64().is_none_or(|wrong| wrong == 0), "{report}");
    assert!(report["checks"]["kills"].as_u64().is_none_or(|kills| kills == 0), "{report}");
    let rows = || report["rows"].as_array().unwrap().iter();
    let ran = |case: &str| rows().any(|row| row["case"] == case && row.get("median").is_some());
    let why = |case: &str| rows().any(|row| row["case"] == case && row.get("median").is_none());
    for case in cases {
        assert!(ran(case) || why(case), "{case}: {report}");
        assert_eq!(ran(case), ran("binding_call"), "{case}: {report}");
    }
}

#[test]
fn malloc_beside_others_and_none_of_its_own_is_killed() {
    let shapes = ["1_1", "1_2", "1_4", "1_16", "4_1", "4_4"];
    let mut cases: Vec<String> = ["faults_per_record", "startup_ms", "trim_held_percent"]
        .into_iter()
        .chain(["reuse_after_b_ms", "bursts_limited", "bursts_unlimited", "size_128m"])
        .map(str::to_owned)
        .collect();
    cases.extend(shapes.iter().map(|shape| format!("ebizzy_{shape}")));
    cases.push("ebizzy_4_4_limited".to_owned());
    let programs = ["program_c", "program_cpp", "program_python", "program_python_malloc"];
    cases.extend(programs.into_iter().chain(["program_redis"]).map(str::to_owned));
    // `a_suite` makes only the first program, so the second row says why figures are missing.
    cases.extend(["suite_glibc_thread", "suite_mstress"].map(str::to_owned));
    let mut ratios: Vec<String> = ["reuse_vs_never", "burst_vs_never", "burst_vs_eager"]
        .into_iter()
        .chain(["size_cliff", "startup_cost_ms_over_mimalloc"])
        .chain(["small_vs_engine", "peak_vs_engine", "program_c_vs_best"])
        .map(str::to_owned)
        .collect();
    for shape in shapes {
        ratios.extend([format!("vs_eager_jemalloc_{shape}"), format!("vs_best_{shape}")]);
    }
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    let dir = Scratch::readable("keys");
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    a_suite(&dir.path().join(SUITE));
    let library = libraries::folder().join("libglebe_malloc.so");
    let library = library.to_str().expect("a path that is text");
    let report = report(program, dir.path(), &["malloc", "--lib", library], None);
    let names: Vec<&str> = ratios.iter().map(String::as_str).collect();
    has(&report, &cases, &names, &["oom_kills", "wrong_bytes"]);
    let rows = || report["rows"].as_array().unwrap().iter();
    let had = |case: &str, who: &str| {
        rows().any(|row| row["case"] == case && row["who"] == who && row.get("median").is_some())
    };
    // These peers need no installation.
    for who in ["glebe", "glebe, base pages", "glibc", "mimalloc"] {
        assert!(had("ebizzy_1_1", who) && had("size_128m", who), "{who}: {report}");
    }
    let compiles = Command::new("make").arg("--version").output().is_ok();
    assert_eq!(had("program_c", "mimalloc"), compiles, "{report}");
    assert_eq!(had("suite_glibc_thread", "mimalloc"), compiles, "{report}");
    assert_eq!(report["checks"]["wrong_bytes"], 0, "{report}");
    assert!(report["checks"]["oom_kills"].as_u64().is_none_or(|kills| kills == 0), "{report}");
    let engine = compiles.then_some(["small_vs_engine", "peak_vs_engine"]).into_iter().flatten();
    for name in ["size_cliff", "vs_best_1_1"].into_iter().chain(engine) {
        assert!(report["ratios"][name].as_f64().is_some_and(|ratio| ratio > 0.0), "{name}");
    }
}

#[test]
fn lease_beside_a_standing_pool_and_no_page_is_lost() {
    let cases = ["lease_1", "lease_8", "lease_62", "lease_124", "revoke_62", "death_seen"];
    let peers = ["lmdb", "diskcache", "memcached"];
    let ratios = peers.map(|peer| format!("shared_get_4k_vs_{peer}"));
    let ratios: Vec<&str> = ratios.iter().map(String::as_str).collect();
    let checks = ["lost_pages", "shared_pages", "wrong_bytes"];
    let dir = Scratch::readable("keys");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let report = report(program, dir.path(), &["lease"], None);
    has(&report, &cases, &["lease_62_vs_standing_pool"], &checks);
    has(&report, &["shared_get_4k"], &ratios, &[]);
    for check in checks {
        assert!(report["checks"][check].as_u64().is_none_or(|count| count == 0), "{report}");
    }
}

#[test]
fn run_beside_pools_and_every_program_gets_its_pages() {
    let cases = [
        "postgres_start",
        "pgbench_select",
        "pgbench_tpcb",
        "aged_java_start",
        "aged_postgres_start",
        "java_start_512m",
        "java_start_1g",
        "java_start_4g",
        "java_work",
        "seen_after_exit",
        "back_after_exit",
        "seen_after_kill",
        "back_after_kill",
        "lent_after_kill",
    ];
    let ratios = [
        "postgres_start_vs_standing",
        "postgres_start_vs_raised",
        "java_start_vs_standing",
        "java_start_vs_raised",
        "pgbench_vs_standing",
        "java_work_vs_standing",
    ];
    let checks = ["fell_back", "failed_starts"];
    let dir = Scratch::readable("keys");
    // Builds the libraries, so that they are beside the program.
    libraries::folder();
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let report = report(program, dir.path(), &["run"], None);
    has(&report, &cases, &ratios, &checks);
    for check in checks {
        assert!(report["checks"][check].as_u64().is_none_or(|count| count == 0), "{report}");
    }
    // A start that was measured has its ratio.
    for (case, ratio) in [
        ("postgres_start", "postgres_start_vs_standing"),
        ("java_start_512m", "java_start_vs_standing"),
    ] {
        let ran = |who: &str| {
            let mut rows = report["rows"].as_array().unwrap().iter();
            let of = |row: &&Value| row["case"] == case && row["who"] == who;
            rows.find(of).is_some_and(|row| row.get("median").is_some())
        };
        let ratio = report["ratios"][ratio].as_f64();
        let both = ran("glebe") && ran("standing pool");
        assert_eq!(both, ratio.is_some_and(|ratio| ratio > 0.0), "{case}: {report}");
    }
}

#[test]
fn what_was_asked_for_is_kept_to_or_refused() {
    let list = bench(&["list"]);
    assert_eq!(
        list.stdout,
        b"reserve\nvolatile\nzpool\nswap\nvmap\ncontig\nserve\nlease\nrun\nhosts\npython\nmalloc\n",
        "{list:?}"
    );
    for wrong in [
        &["no-such"][..],
        &["volatile", "--background", "true"],
        &["vmap", "--tree", "/"],
        &["vmap", "--lib", "/"],
    ] {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
    for (args, said) in [
        (&["reserve", "--dir", "/nonexistent"][..], "/nonexistent"),
        (&["zpool", "--quick", "--tree", "/nonexistent/tree"], "/nonexistent/tree"),
        (&["malloc", "--quick", "--only", "no-such"], "give-back"),
        (&["swap", "--quick", "--only", "no-such"], "policies"),
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
}
