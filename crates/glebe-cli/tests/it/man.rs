//! Tests that manual pages are complete, well-formed and match `man/`, and that completions work.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use glebe_testing::Scratch;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

fn glebe(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe")).args(args).output();
    output.expect("the program starts")
}

fn ok(args: &[&str]) -> String {
    let output = glebe(args);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn subcommands() -> Vec<String> {
    below(&[])
}

fn below(path: &[&str]) -> Vec<String> {
    let help = ok(&[path, &["--help"]].concat());
    // The help of `glebe` itself lists the subcommands in groups.
    let first = if path.is_empty() { "Look:\n" } else { "Commands:\n" };
    if !help.contains(first) {
        return Vec::new();
    }
    let list = help.split(first).nth(1).and_then(|rest| rest.split("\nOptions:").next());
    let names = list.expect("a list").lines();
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help").collect()
}

fn pages(dir: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn every_subcommand_has_a_page_and_those_kept_are_in_step() {
    let scratch = Scratch::new("pages");
    let listed = ok(&["man", scratch.path().to_str().unwrap()]);
    let made = pages(scratch.path());
    assert_eq!(listed.lines().count(), made.len());
    let names = subcommands();
    assert!(names.len() >= 7 && names.contains(&"stats".to_owned()), "{names:?}");
    let mut expected: Vec<String> = names.iter().map(|name| format!("glebe-{name}.1")).collect();
    for name in &names {
        let nested = below(&[name]).into_iter();
        expected.extend(nested.map(|sub| format!("glebe-{name}-{sub}.1")));
    }
    assert!(expected.contains(&"glebe-contig-reserve.1".to_owned()), "{expected:?}");
    expected.push("glebe.1".into());
    expected.sort_unstable();
    assert_eq!(made.keys().cloned().collect::<Vec<_>>(), expected);
    for name in &names {
        assert!(made["glebe.1"].contains(&format!("glebe\\-{name}(1)")), "{name}");
    }
    let kept = pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man"));
    assert_eq!(
        kept.keys().collect::<Vec<_>>(),
        made.keys().collect::<Vec<_>>(),
        "`make man` brings man/ in step"
    );
    for (name, text) in &made {
        assert!(kept[name] == *text, "man/{name} is out of step; `make man` brings it back");
        let has_no_files = ["glebe-completions.1", "glebe-man.1", "glebe-zpool.1"];
        let has_none = has_no_files.contains(&name.as_str());
        assert!(has_none || text.contains(".SH FILES\n"), "{name} names no files");
        assert!(text.contains(".SH EXAMPLES\n"), "{name} has no examples");
        assert!(text.contains(".SH \"SEE ALSO\"\n") && text.contains("(1)"), "{name}");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\""] {
            assert!(text.contains(&format!(".SH {section}\n")), "{name} has no {section}");
        }
    }
}

fn has(program: &str, args: &[&str]) -> bool {
    let found = Command::new(program).args(args).output().is_ok_and(|o| o.status.success());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn complaints(page: &Path) -> String {
    let checks: [(&str, &[&str]); 3] = [
        ("groff", &["-man", "-ww", "-z", "-Tutf8"]),
        ("man", &["--warnings", "-Tutf8", "-Z", "-l"]),
        ("mandoc", &["-Tlint", "-Wwarning"]),
    ];
    let mut said = String::new();
    for (program, args) in checks {
        let Ok(output) = Command::new(program).args(args).arg(page).output() else { continue };
        said += &String::from_utf8_lossy(&output.stderr);
        if program == "mandoc" {
            said += &String::from_utf8_lossy(&output.stdout);
        }
    }
    said
}

#[test]
fn formatters_find_nothing_wrong_with_a_page_and_something_with_a_broken_one() {
    let tools = [
        has("groff", &["--version"]),
        has("man", &["--version"]),
        has("mandoc", &["-Tlint", "-Wfatal", "/dev/null"]),
    ];
    if !tools.contains(&true) {
        return;
    }
    let scratch = Scratch::new("lint");
    ok(&["man", scratch.path().to_str().unwrap()]);
    for name in pages(scratch.path()).keys() {
        let said = complaints(&scratch.path().join(name));
        assert!(said.is_empty(), "{name}: {said}");
    }
    let broken = scratch.path().join("broken.1");
    fs::write(&broken, ".TH x 1\n.SH NAME\n.nosuchmacro\nx \\- \\*[nosuchstring]\n").unwrap();
    assert!(!complaints(&broken).is_empty(), "no tool complains of a broken page");
}

#[test]
fn completions_know_every_subcommand_and_are_shell() {
    for shell in SHELLS {
        let script = ok(&["completions", shell]);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("openmetrics"), "{shell}: options");
        if !has(shell, &["--version"]) {
            continue;
        }
        let scratch = Scratch::new(shell);
        let file = scratch.path().join("script");
        fs::write(&file, script).unwrap();
        let output = Command::new(shell).arg("-n").arg(&file).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
    }
    assert_eq!(glebe(&["completions", "no-such"]).status.code(), Some(2));
}

#[test]
fn bash_completes_with_the_script() {
    if !has("bash", &["--version"]) {
        return;
    }
    let program = "eval \"$1\"; COMP_WORDS=(glebe p); COMP_CWORD=1\n\
        _glebe glebe p glebe; echo \"${COMPREPLY[@]}\"";
    let script = ok(&["completions", "bash"]);
    let output = Command::new("bash").args(["-c", program, "bash", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "probe", "{output:?}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let output = glebe(&["man", "/dev/null/pages"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("/dev/null/pages"), "{stderr}");
}
