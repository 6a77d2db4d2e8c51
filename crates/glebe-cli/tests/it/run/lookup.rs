//! Tests that `glebe run` finds programs as execvp(3) does.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, PermissionsExt};

use super::{ok, refused, Place};

#[test]
fn the_first_that_may_be_executed_in_path_is_taken() {
    let Some(place) = Place::with_library() else { return };
    for folder in ["folder", "plain", "first", "second"] {
        fs::create_dir(place.path(folder)).unwrap();
        if folder == "folder" {
            fs::create_dir(place.path("folder/prog")).unwrap();
            continue;
        }
        let file = place.write(format!("{folder}/prog"), format!("#!/bin/sh\necho {folder}\n"));
        let mode = if folder == "plain" { 0o644 } else { 0o755 };
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }
    let path = |folders: &[&str]| {
        let all = folders.iter().map(|name| place.path(name).display().to_string());
        all.collect::<Vec<_>>().join(":")
    };
    let found = |path: &str| ok(place.malloc("prog", &[]).env("PATH", path)).trim().to_owned();
    assert_eq!(found(&path(&["nothing", "folder", "plain", "first", "second"])), "first");
    assert_eq!(found(&path(&["second", "first"])), "second");
    assert_eq!(found("second"), "second");
    // An empty folder in PATH means the working directory.
    place.write("prog", "#!/bin/sh\necho here\n");
    for empty in ["", ":/nothing", "/nothing:", "/nothing::/bin"] {
        assert_eq!(found(empty), "here", "{empty:?}");
    }
    for (name, expected) in [("./prog", "here"), ("first/prog", "first")] {
        assert_eq!(ok(&mut place.malloc(name, &[])).trim(), expected);
    }
    let line = refused(place.malloc("prog", &[]).env("PATH", path(&["folder", "plain"])), 126);
    assert!(line.contains("you may not execute it"), "{line}");
}

#[test]
fn without_path_the_system_s_folders_are_searched() {
    let Some(place) = Place::with_library() else { return };
    assert_eq!(ok(place.malloc("echo", &["here"]).env_remove("PATH")), "here\n");
    let line = refused(place.malloc("no-such-program", &[]).env_remove("PATH"), 127);
    assert!(line.contains("no-such-program: no such program in /bin:/usr/bin"), "{line}");
}

#[test]
fn what_is_not_there_or_cannot_be_executed_has_the_status_of_env() {
    let Some(place) = Place::with_library() else { return };
    let text = place.write("text", "true\n");
    fs::set_permissions(&text, Permissions::from_mode(0o644)).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    let cases = [
        ("no-such", 127),
        ("./no-such", 127),
        ("", 127),
        ("./text", 126),
        ("./text/x", 126),
        ("./loop", 126),
        ("./folder", 126),
        ("/dev/null", 126),
    ];
    for (name, status) in cases {
        // PATH has only searchable folders, because execvp treats others differently from `glebe
        // run`.
        let path = "/usr/bin:/bin";
        let line = refused(place.malloc(name, &[]).env("PATH", path), status);
        assert!(line.contains(name.trim_start_matches("./")), "{line}");
        // `env` gives this status too, except for an empty name.
        let mut bare = std::process::Command::new("env");
        let bare = bare
            .arg("--")
            .arg(name)
            .env("PATH", path)
            .current_dir(place.0.path())
            .output()
            .unwrap();
        assert!(name.is_empty() || bare.status.code() == Some(status), "{name}: {bare:?}");
    }
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let Some(place) = Place::with_library() else { return };
    let fifo = place.path("fifo");
    let made = std::process::Command::new("mkfifo").args(["-m", "755"]).arg(&fifo).status();
    assert!(made.unwrap().success());
    let line = refused(&mut place.malloc(&fifo, &[]), 126);
    assert!(line.contains("no regular file"), "{line}");
}

#[test]
fn names_and_arguments_are_bytes() {
    let Some(place) = Place::with_library() else { return };
    let name = OsStr::from_bytes(b"-a b\n$'\"\\\xff,:");
    place.write(name, "#!/bin/sh\nprintf '%s|' \"$@\"\n");
    let path = format!("/bin:/usr/bin:{}", place.0.path().display());
    let arguments = [b"", b"a b".as_slice(), b"\xff\xfe", b"--stats", b"--", b"-c"];
    let output = place
        .malloc(name, &[])
        .args(arguments.map(OsStr::from_bytes))
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, [&arguments.join(&b'|')[..], b"|"].concat());
}
