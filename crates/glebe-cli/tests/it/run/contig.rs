//! Tests what `--contig` sets. The library is empty.

use std::ffi::OsStr;
use std::fs;

use super::{ok, refused, said, stand_in, Place, LIBRARY};

const HUGE: &str = "libglebe_huge.so";

/// Returns a folder with both libraries, or `None` without a compiler.
fn place() -> Option<Place> {
    let place = Place::with_library()?;
    fs::write(place.path("bin").join(HUGE), stand_in()?).unwrap();
    Some(place)
}

fn flags<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

#[test]
fn a_dry_run_prints_what_would_be_set_and_starts_nothing() {
    let Some(place) = place() else { return };
    let dry = ["--contig", "--dry-run", "--socket", "/none", "--quota", "2G", "--node", "1"];
    let more =
        ["--revocable", "--show-pages", "--no-fork-copy", "--verbose", "--", "sh", "-c", "exit 7"];
    let output = place.command(&flags(&[&dry[..], &more].concat())).output().unwrap();
    let (out, err) = said(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(err.starts_with("glebe: no daemon answers at /none"), "{err}");
    assert!(err.ends_with("; the kernel gets the program's requests\n"), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    let huge = lines[0].strip_prefix(
        "GLEBE_HUGE=revocable,show-pages,leave-out,verbose,quota=2147483648,node=1,main=",
    );
    assert!(huge.is_some_and(|pid| pid.parse::<u32>().is_ok()), "{out}");
    assert_eq!(lines[1], "GLEBE_LEASES=/none");
    let preload = format!("LD_PRELOAD={}", place.path("bin").join(HUGE).display());
    assert_eq!(lines[2], preload);
    assert!(lines[3].ends_with("/sh -c exit 7") && lines.len() == 4, "{out}");
}

#[test]
fn both_libraries_may_be_preloaded() {
    let Some(place) = place() else { return };
    let words = ["--contig", "--malloc", "--option", "age=7", "--socket", "/none", "--dry-run"];
    let output = place.command(&flags(&[&words[..], &["--", "true"]].concat())).output().unwrap();
    let (out, _) = said(&output);
    let [malloc, huge] = [LIBRARY, HUGE].map(|name| place.path("bin").join(name));
    let both = format!("LD_PRELOAD={}:{}\n", malloc.display(), huge.display());
    assert!(out.contains(&both) && out.contains("GLEBE_MALLOC=age=7\n"), "{out}");
    let one = ["--malloc", "--dry-run", "--", "true"];
    let preload = format!("LD_PRELOAD={}\n", malloc.display());
    assert!(ok(&mut place.command(&flags(&one))).starts_with(&preload));
}

#[test]
fn one_file_is_one_library() {
    let Some(place) = place() else { return };
    let words = |lib| ["--contig", "--malloc", "--lib", lib, "--socket", "/none", "--dry-run"];
    let ran = |lib| place.command(&flags(&[&words(lib)[..], &["--", "true"]].concat())).output();
    let output = ran("bin/libglebe_malloc.so").unwrap();
    let (out, err) = said(&output);
    assert_eq!((output.status.code(), &*out), (Some(125), ""), "{err}");
    assert!(err.contains("--lib names one file, and two libraries are needed"), "{err}");
    assert!(ran("bin").unwrap().status.success());
}

#[test]
fn the_other_library_is_refused() {
    let place = Place::new();
    for (flag, name, other) in [("--malloc", LIBRARY, HUGE), ("--contig", HUGE, LIBRARY)] {
        let run = |file: &str| {
            let renamed = place.path(format!("{flag}.so"));
            fs::copy(crate::libraries::folder().join(file), &renamed).unwrap();
            let words = [flag, "--dry-run", "--lib"].map(OsStr::new);
            let mut command = place.command(&[&words[..], &[renamed.as_os_str()]].concat());
            command.args(["--", "true"]);
            command
        };
        let line = refused(&mut run(other), 125);
        assert!(line.contains(&format!("is {other}, and {name} is needed")), "{line}");
        assert!(run(name).output().unwrap().status.success(), "{name}");
    }
}

#[test]
fn a_relative_socket_becomes_absolute() {
    let Some(place) = place() else { return };
    let set = |command: &mut std::process::Command| {
        let (out, _) = said(&command.args(["--dry-run", "--", "true"]).output().unwrap());
        out.lines().find_map(|line| line.strip_prefix("GLEBE_LEASES=").map(str::to_owned))
    };
    let absolute = Some(place.path("folder/leases").display().to_string());
    let words = flags(&["--contig", "--socket", "folder/leases"]);
    assert_eq!(set(&mut place.command(&words)), absolute);
    let contig = || place.command(&flags(&["--contig"]));
    assert_eq!(set(contig().env("GLEBE_LEASES", "folder/leases")), absolute);
    assert_eq!(set(&mut contig()), None);
}

#[test]
fn what_is_required_must_be_there() {
    let Some(place) = place() else { return };
    let words = ["--contig", "--required", "--socket", "/none", "--", "true"];
    let line = refused(&mut place.command(&flags(&words)), 125);
    assert!(line.starts_with("glebe: no daemon answers at /none: "), "{line}");
    fs::remove_file(place.path("bin").join(HUGE)).unwrap();
    let line = refused(&mut place.command(&flags(&["--contig", "--", "true"])), 125);
    assert!(line.starts_with(&format!("glebe: no {HUGE}: tried ")), "{line}");
}

#[test]
fn options_of_contig_need_it() {
    let place = Place::new();
    for option in [&["--required"][..], &["--quota", "1G"], &["--verbose"], &["--no-fork-copy"]] {
        let words = [option, &["--malloc", "--", "true"]].concat();
        let output = place.command(&flags(&words)).output().unwrap();
        let (_, err) = said(&output);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(err.contains("--contig"), "{err}");
    }
}
