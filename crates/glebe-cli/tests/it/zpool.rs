//! Tests `glebe zpool`: the kernel's classes, and parameters out of range.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("zpool").args(args).output().expect("the program starts")
}

fn table(args: &[&str]) -> (Vec<Vec<String>>, String) {
    let output = glebe(&[args, &["--short"]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let sum = lines.pop().expect("a sum").to_owned();
    let head: Vec<&str> = lines.remove(0).split_whitespace().collect();
    let columns = ["class", "size", "objs_per_zspage", "pages_per_zspage", "tail", "tail_percent"];
    assert_eq!(head, columns);
    let words = |line: &&str| line.split_whitespace().map(str::to_owned).collect();
    (lines.iter().map(words).collect(), sum)
}

#[test]
fn the_classes_of_the_kernel_are_printed() {
    let (rows, sum) = table(&["classes", "--page", "4K"]);
    assert_eq!(rows.len(), 119);
    assert_eq!(sum, "119 classes; objects above 3632 B take a page each");
    assert_eq!(rows[30], ["30", "512", "8", "1", "0", "0.00"]);
    assert_eq!(rows[118], ["254", "4096", "1", "1", "0", "0.00"]);
    assert_eq!(rows[117], ["225", "3632", "9", "8", "80", "0.24"]);
}

/// The columns in Documentation/mm/zsmalloc.rst.
const KERNEL_COLUMNS: &str = "class size 10% 20% 30% 40% 50% 60% 70% 80% 90% 99% 100% \
    obj_allocated obj_used pages_used pages_per_zspage freeable";

#[test]
fn the_columns_are_the_kernels() {
    let output = glebe(&["classes", "--page", "4K", "--chain", "4"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), KERNEL_COLUMNS);
    assert_eq!(lines.len(), 1 + 69 + 1);
    assert!(lines[1..70].iter().all(|line| line.len() == lines[0].len()), "{text}");
    // One full zspage: 19 objects of 848 bytes in 4 pages.
    let row = "51 848 0 0 0 0 0 0 0 0 0 0 1 19 19 4 4 0";
    assert!(lines.iter().any(|line| line.join(" ") == row), "{text}");
}

/// Compares the classes with stored tables, computed independently by the kernel's rule.
#[test]
fn tables_for_every_page_size_are_the_golden_ones() {
    for (page, chain, golden) in [
        ("4K", "4", include_str!("../classes/4k_4.txt")),
        ("4K", "8", include_str!("../classes/4k_8.txt")),
        ("16K", "4", include_str!("../classes/16k_4.txt")),
        ("16K", "8", include_str!("../classes/16k_8.txt")),
        ("64K", "4", include_str!("../classes/64k_4.txt")),
        ("64K", "8", include_str!("../classes/64k_8.txt")),
    ] {
        let (rows, _) = table(&["classes", "--page", page, "--chain", chain]);
        let rows: String = rows.iter().map(|row| row[..4].join(" ") + "\n").collect();
        assert!(rows == golden, "{page}, chain {chain}:\n{rows}");
    }
}

#[test]
fn every_parameter_changes_the_table() {
    let count = |args: &[&str]| table(&[&["classes", "--page", "4K"], args].concat()).0.len();
    assert_eq!(count(&["--chain", "4"]), 69);
    assert_eq!(count(&["--no-merge"]), 255);
    assert_eq!(count(&["--step", "32"]), 77);
    assert_eq!(count(&["--min", "2048"]), 23);
    assert_eq!(count(&["--min", "4096"]), 1);
    assert_eq!(table(&["classes", "--page", "16K", "--chain", "4"]).0.len(), 70);
    assert_eq!(table(&["classes", "--page", "64K"]).0.len(), 123);
}

#[test]
fn what_makes_no_table_is_refused_with_value_and_limit() {
    let refused: [(&[&str], &str, &str); 6] = [
        (&["--chain", "17"], "17", "16"),
        (&["--chain", "0"], "0", "16"),
        (&["--step", "24"], "24", "power of two"),
        (&["--page", "5000"], "5000", "power of two"),
        (&["--page", "1M"], "1048576", "65536"),
        (&["--page", "4K", "--min", "8K"], "8192", "4096"),
    ];
    for (args, value, limit) in refused {
        let output = glebe(&[&["classes"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(text.contains(value) && text.contains(limit), "{args:?}: {text}");
    }
    assert_eq!(glebe(&[]).status.code(), Some(2));
    assert_eq!(glebe(&["no-such"]).status.code(), Some(2));
}

#[test]
fn statistics_of_a_pool_are_json_with_each_class() {
    use glebe::zpool::{Codec, ObjectPool};
    let empty: serde_json::Value =
        serde_json::from_str(&ObjectPool::options().build().unwrap().stats().to_json()).unwrap();
    assert_eq!(empty["classes"].as_array().unwrap().len(), 0);
    let pool = ObjectPool::options().codec(Codec::None).build().unwrap();
    for n in 0..2000 {
        pool.insert(&vec![1; 40 + n * 37 % 2000]).unwrap();
    }
    let stats = pool.stats();
    let json: serde_json::Value = serde_json::from_str(&stats.to_json()).unwrap();
    assert_eq!(json["objects"], 2000);
    let classes = json["classes"].as_array().unwrap();
    let in_use: Vec<_> = stats.classes.iter().filter(|class| class.zspages > 0).collect();
    assert!(in_use.len() > 10 && classes.len() == in_use.len());
    for (json, class) in classes.iter().zip(in_use) {
        assert_eq!(json["size"], class.size.get());
        assert_eq!(json["pages_per_zspage"], class.pages_per_zspage.get());
        assert_eq!(json["objects_per_zspage"], class.objects_per_zspage);
        assert_eq!(
            (&json["allocated"], &json["used"]),
            (&class.allocated.into(), &class.used.into())
        );
        assert_eq!(json["freeable_pages"], class.freeable.get());
        let groups = json["groups"].as_array().unwrap();
        assert_eq!(groups.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), class.zspages);
    }
}
