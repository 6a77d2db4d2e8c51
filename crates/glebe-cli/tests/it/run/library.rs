//! Tests the search for the library, and which libraries are refused.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ok, refused, Place, LIBRARY};

/// Returns the preloaded library. The command must end with [`PRINT`].
fn preloaded(command: &mut Command) -> PathBuf {
    let printed = ok(command);
    PathBuf::from(printed.trim_end())
}

const PRINT: [&str; 2] = ["-c", "echo \"$LD_PRELOAD\""];

#[test]
fn beside_the_command_comes_first_then_the_folders_of_the_prefix() {
    let place = Place::new();
    let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
    let folders = ["bin", "lib", &multiarch, "lib64"];
    for folder in folders {
        if place.add_library(folder).is_none() {
            return;
        }
    }
    // The command finds the same library if a link starts it.
    let link = place.path("link");
    symlink(place.path("bin/glebe"), &link).unwrap();
    for folder in folders {
        let library = place.path(folder).join(LIBRARY);
        assert_eq!(preloaded(&mut place.malloc("sh", &PRINT)), library);
        let mut linked = Command::new(&link);
        linked.args(["run", "--malloc", "sh"]).args(PRINT).env_remove("LD_PRELOAD");
        assert_eq!(preloaded(&mut linked), library);
        fs::remove_file(library).unwrap();
    }
    let error = refused(&mut place.malloc("sh", &PRINT), 125);
    let mut rest = &*error;
    for folder in folders {
        let tried = place.path(folder).join(LIBRARY).display().to_string();
        let at = rest.find(&tried).unwrap_or_else(|| panic!("{tried} in its order: {error}"));
        rest = &rest[at + tried.len()..];
    }
    assert!(rest.contains("make install") && rest.contains("--lib"), "{error}");
}

#[test]
fn a_file_or_a_folder_can_be_given_and_counts_alone() {
    let Some(place) = Place::with_library() else { return };
    let other = place.add_library("other").unwrap();
    let renamed = place.path("other/renamed.so");
    fs::copy(&other, &renamed).unwrap();
    let given = |lib: &Path| {
        let flags = ["--malloc".as_ref(), "--lib".as_ref(), lib.as_os_str()];
        let mut command = place.command(&flags);
        command.args(["--", "sh"]).args(PRINT);
        command
    };
    for (lib, expected) in [
        (place.path("other"), &other),
        (other.clone(), &other),
        (renamed.clone(), &renamed),
        // A relative path becomes absolute.
        ("other".into(), &other),
        ("other/renamed.so".into(), &renamed),
        ("./bin/../other".into(), &place.path("bin/../other").join(LIBRARY)),
    ] {
        assert_eq!(&preloaded(&mut given(&lib)), expected, "{lib:?}");
    }
    for nothing in ["nothing.so", "lib", "other/renamed.so/x"] {
        let line = refused(&mut given(Path::new(nothing)), 125);
        let tried = place.path(nothing).display().to_string();
        assert!(line.contains(&format!("tried {tried}")) && !line.contains("/bin/"), "{line}");
    }
}

#[test]
fn what_is_no_shared_library_is_refused() {
    let Some(place) = Place::with_library() else { return };
    let given = |lib: &Path| {
        let flags = ["--malloc".as_ref(), "--lib".as_ref(), lib.as_os_str()];
        let mut command = place.command(&flags);
        command.arg("true");
        refused(&mut command, 125)
    };
    let text = place.write("text.so", "INPUT(libc.so.6)");
    let cut = place.write("cut.so", &fs::read(place.library()).unwrap()[..70]);
    for wrong in [text, cut].iter().chain(&place.compile("fixed", &["-no-pie"])) {
        let line = given(wrong);
        assert!(line.contains("is no shared library"), "{line}");
        assert!(line.contains(wrong.to_str().unwrap()), "{line}");
    }
}

#[test]
fn a_path_that_the_loader_would_split_is_refused_with_the_reason() {
    for (name, byte) in [("a b", "' '"), ("a:b", "':'"), ("$ORIGIN", "'$'")] {
        let place = Place::new();
        let Some(library) = place.add_library(name) else { return };
        let flags = ["--malloc".as_ref(), "--lib".as_ref(), OsStr::new(name)];
        let line = refused(place.command(&flags).arg("true"), 125);
        assert!(line.contains(&format!("because of the {byte}")), "{line}");
        assert!(line.contains(library.to_str().unwrap()), "{line}");
        symlink(&library, place.path("link.so")).unwrap();
        let flags = ["--malloc", "--lib", "link.so", "cat", super::MAPS].map(OsStr::new);
        assert!(ok(&mut place.command(&flags)).contains(library.to_str().unwrap()));
    }
}
