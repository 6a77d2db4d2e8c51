//! Tests LD_PRELOAD and GLEBE_MALLOC in the program.

use std::ffi::OsStr;

use super::{ok, Place, MAPS};

/// Returns GLEBE_MALLOC, with the process number checked and replaced by `N`.
fn options_of(printed: &str) -> Option<String> {
    let found = found(printed, "GLEBE_MALLOC")?;
    let pid = found.split(',').find_map(|word| word.strip_prefix("pid="));
    assert!(pid.is_none_or(|pid| pid.parse::<u32>().is_ok()), "{found}");
    Some(found.replace(&format!(",pid={}", pid.unwrap_or_default()), ",pid=N"))
}

fn found(printed: &str, name: &str) -> Option<String> {
    printed.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[test]
fn the_library_is_in_the_program_and_in_what_that_starts() {
    let Some(place) = Place::with_library() else { return };
    let library = place.library();
    let library = library.to_str().unwrap();
    assert!(ok(&mut place.malloc("cat", &[MAPS])).contains(library));
    assert!(ok(&mut place.malloc("sh", &["-c", "cat /proc/self/maps"])).contains(library));
}

#[test]
fn without_options_only_the_library_is_added_and_all_else_is_kept() {
    let Some(place) = Place::with_library() else { return };
    let printed = ok(place.malloc("env", &[]).env("OTHER", "a b"));
    assert_eq!(found(&printed, "LD_PRELOAD").as_deref(), place.library().to_str());
    assert_eq!(found(&printed, "GLEBE_MALLOC"), None);
    assert_eq!(found(&printed, "OTHER").as_deref(), Some("a b"));
    let printed = ok(place.malloc("env", &[]).env("GLEBE_MALLOC", "age=7,,odd"));
    assert_eq!(found(&printed, "GLEBE_MALLOC").as_deref(), Some("age=7,,odd"));
}

#[test]
fn a_library_that_was_preloaded_stays_behind_ours() {
    let Some(place) = Place::with_library() else { return };
    let other = place.add_library("other").unwrap();
    let both = format!("{}:{}", place.library().display(), other.display());
    assert_eq!(
        found(&ok(place.malloc("env", &[]).env("LD_PRELOAD", &other)), "LD_PRELOAD"),
        Some(both)
    );
    let maps = ok(place.malloc("cat", &[MAPS]).env("LD_PRELOAD", &other));
    for library in [&place.library(), &other] {
        assert!(maps.contains(library.to_str().unwrap()), "{library:?}");
    }
}

#[test]
fn a_nested_run_adds_the_library_once() {
    let Some(place) = Place::with_library() else { return };
    let glebe = place.path("bin/glebe");
    let nested = [glebe.to_str().unwrap(), "run", "--malloc", "--stats", "--", "env"];
    let printed = ok(place.malloc(nested[0], &nested[1..]).env("GLEBE_MALLOC", "age=3"));
    assert_eq!(found(&printed, "LD_PRELOAD").as_deref(), place.library().to_str());
    assert_eq!(options_of(&printed).as_deref(), Some("age=3,stats,pid=N"));
}

#[test]
fn options_count_in_the_order_that_the_manual_says() {
    let Some(place) = Place::with_library() else { return };
    let options = |before: &str, flags: &[&str]| {
        let flags = [&["--malloc"], flags, &["--", "env"]].concat();
        let flags: Vec<&OsStr> = flags.into_iter().map(OsStr::new).collect();
        options_of(&ok(place.command(&flags).env("GLEBE_MALLOC", before))).unwrap()
    };
    let cases: [(&str, &[&str], &str); 8] = [
        ("", &["--stats"], "stats,pid=N"),
        ("", &["--stats", "--signal", "SIGUSR2"], "signal=USR2,stats,pid=N"),
        ("", &["--signal=hup", "--stats=json"], "signal=HUP,format=json,stats,pid=N"),
        ("", &["--stats=text:/x/%p"], "format=text,stats=/x/%p"),
        ("stats=/x,thread=off", &["--stats"], "thread=off,stats,pid=N"),
        ("format=json", &["--option", "format=text", "--stats"], "format=text,stats,pid=N"),
        ("", &["--stats=json", "--option", "format=text"], "format=json,stats,pid=N"),
        ("age=1", &["--option=age=2", "--option", "huge=off", "--option=age=3"], "huge=off,age=3"),
    ];
    for (before, flags, expected) in cases {
        assert_eq!(options(before, flags), expected, "{before} {flags:?}");
    }
    let here = place.path("out.json");
    assert_eq!(options("", &["--stats=out.json"]), format!("stats={},pid=N", here.display()));
    // The allocator expands %p in a path, so the command must escape `%` in the folder's name.
    let folder = place.path("50%p");
    std::fs::create_dir(&folder).unwrap();
    let flags = ["--malloc", "--stats=%p", "--", "env"].map(OsStr::new);
    let printed = ok(place.command(&flags).current_dir(folder));
    let expected = format!("stats={}/50%%p/%p", place.0.path().display());
    assert_eq!(found(&printed, "GLEBE_MALLOC"), Some(expected));
}
