//! Tests that `glebe run` follows scripts to their interpreter, as the kernel does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::{ok, refused, Place, MAPS};

/// Writes scripts `s1` to `s<count>`, each with the next as its interpreter. The interpreter of the
/// last is `by`.
fn chain(place: &Place, count: u32, by: &str) -> PathBuf {
    for number in 1..=count {
        let next = place.path(format!("s{}", number + 1)).display().to_string();
        let next = if number == count { by } else { &next };
        place.write(format!("s{number}"), format!("#! {next}\n"));
    }
    place.path("s1")
}

#[test]
fn a_script_is_run_with_the_library_in_its_interpreter() {
    let Some(place) = Place::with_library() else { return };
    let library = place.library().display().to_string();
    let script = place.write("script", format!("#!/bin/sh -e\ncat {MAPS} /proc/$$/maps\n"));
    assert_eq!(ok(&mut place.malloc(&script, &[])).matches(&library).count() % 2, 0);
    // execvp(3) runs a file without `#!` in a shell. Paths of interpreters may be relative.
    let plain = place.write("plain", format!("exec cat {MAPS}\n"));
    assert!(ok(&mut place.malloc(&plain, &[])).contains(&library));
    place.cat("own-cat");
    let relative = place.write("relative", "#!own-cat\nhere\n");
    assert_eq!(ok(&mut place.malloc(&relative, &[])), "#!own-cat\nhere\n");
}

#[test]
fn a_chain_is_followed_as_far_as_the_kernel_follows_it() {
    let Some(place) = Place::with_library() else { return };
    for (count, is_followed) in [(5, true), (6, false)] {
        let script = chain(&place, count, "/bin/echo");
        assert_eq!(Command::new(&script).output().is_ok(), is_followed, "{count}");
        let mut command = place.malloc(&script, &[]);
        match is_followed {
            true => assert!(ok(&mut command).contains(script.to_str().unwrap())),
            false => assert!(refused(&mut command, 126).contains("more than 5 scripts")),
        }
    }
    let own = place.path("own");
    place.write("own", format!("#!{}\n", own.display()));
    assert!(refused(&mut place.malloc(&own, &[]), 126).contains("more than 5 scripts"));
}

#[test]
fn an_interpreter_is_refused_as_a_program_would_be() {
    let Some(place) = Place::with_library() else { return };
    let missing = chain(&place, 3, "/no/such/interpreter");
    let line = refused(&mut place.malloc(&missing, &[]), 126);
    assert!(line.contains("its interpreter /no/such/interpreter: No such file"), "{line}");
    let Some(fixed) = place.compile("static", &["-static"]) else { return };
    let script = chain(&place, 3, fixed.to_str().unwrap());
    let line = refused(&mut place.malloc(&script, &[]), 125);
    assert!(line.contains(&format!("{} is linked statically", fixed.display())), "{line}");
}

#[test]
fn a_script_s_own_mode_does_not_count() {
    let Some(place) = Place::with_library() else { return };
    let script = place.write("script", "#!/bin/echo\n");
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&script, Some(super::NOBODY), Some(super::NOBODY)).unwrap();
    }
    fs::set_permissions(&script, Permissions::from_mode(0o6755)).unwrap();
    assert!(ok(&mut place.malloc(&script, &[])).contains("script"));
}
