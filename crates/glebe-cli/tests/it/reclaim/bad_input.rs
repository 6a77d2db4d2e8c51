//! Tests that wrong command lines and unsuitable files are refused with a reason.

use std::fs::{self, File};
use std::os::unix::fs::{symlink, FileExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::process::Command;

use glebe_testing::Scratch;

use super::purging::output;
use super::Tmpfs;

fn refused(args: &[&str]) -> String {
    let output = output(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(said.starts_with("glebe: ") && said.lines().count() == 1, "{args:?}: {said}");
    said
}

#[test]
fn a_wrong_command_line_is_status_2() {
    let wrong: [&[&str]; 9] = [
        &[],
        &["--once", "0", "x"],
        &["--once", "x"],
        &["--margin", "1.5", "x"],
        &["--quota", "-1", "x"],
        &["-q", "-v", "x"],
        &["--once", "1M", "--wait", "x"],
        &["--dry-run", "--quota", "1M", "x"],
        &["--once", "1M", "--cgroup", "/", "x"],
    ];
    for args in wrong {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn a_file_that_is_none_of_the_kind_is_named_with_the_reason() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let good = dir.shared("good", 1);
    symlink(dir.join("good"), dir.join("link")).unwrap();
    symlink("/proc/self/fd/0", dir.join("sly")).unwrap();
    let made = Command::new("mkfifo").arg(dir.join("fifo")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let _socket = UnixListener::bind(dir.join("socket")).unwrap();
    fs::write(dir.join("text"), "no memory").unwrap();
    fs::write(dir.join("zeros"), vec![0; 1 << 20]).unwrap();
    let copy = |name: &str, word: u64, value: u64| {
        fs::copy(dir.join("good"), dir.join(name)).unwrap();
        let file = File::options().write(true).open(dir.join(name)).unwrap();
        file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
        file
    };
    copy("version", 1, 7);
    copy("granules", 4, u64::MAX);
    // This file claims 2^42 granules, which need more than the address space.
    copy("vast", 4, 1 << 42);
    copy("cut", 1, 1).set_len(1 << 12).unwrap();
    let cases = [
        ("nothing", "No such file"),
        ("", "a directory"),
        ("link", "a symbolic link"),
        ("sly", "a symbolic link"),
        ("fifo", "a FIFO"),
        ("socket", "a socket"),
        ("text", "its length is"),
        ("zeros", "the magic is 0x0"),
        ("version", "the version is 0x7, not 0x1"),
        ("granules", "the granules is"),
        ("vast", "the granules is"),
        ("cut", "are needed"),
    ];
    for (name, why) in cases {
        for how in [&["--once", "1M"][..], &["--dry-run"], &[]] {
            let file = path(name);
            let said = refused(&[how, &[&path("good"), &file]].concat());
            assert!(said.contains(why) && said.contains(&file), "{name}: {said}");
        }
    }
    for (file, why) in [("/dev/null", "a device"), ("/proc/self/status", "not on tmpfs")] {
        let said = refused(&[file]);
        assert!(said.contains(why) && said.contains(file), "{said}");
    }
    let said = refused(&[&path("good"), &path("good")]);
    assert!(said.contains("are one file"), "{said}");
    drop(good);
}

#[test]
fn a_file_on_a_disk_is_refused() {
    let scratch = Scratch::new("reclaim-disk");
    let path = scratch.path().join("disk");
    fs::write(&path, vec![0; 1 << 16]).unwrap();
    let said = refused(&[path.to_str().unwrap()]);
    if said.contains("the magic") {
        println!("skipped: the scratch directory is on tmpfs");
        return;
    }
    assert!(said.contains("not on tmpfs"), "{said}");
}

#[test]
fn a_directory_that_is_no_group_is_refused() {
    let Some(dir) = Tmpfs::new() else { return };
    let _good = dir.shared("good", 1);
    let good = dir.join("good");
    for group in ["/nonexistent", "/dev/null", dir.0.to_str().unwrap()] {
        let said = refused(&["--cgroup", group, good.to_str().unwrap()]);
        assert!(said.contains(group), "{said}");
        assert!(said.contains("memory cgroup") || said.contains("Not a directory"), "{said}");
    }
}

#[test]
fn a_file_of_another_user_needs_the_right_to_write() {
    use std::os::unix::process::CommandExt;
    let Some(dir) = Tmpfs::new() else { return };
    let _shared = dir.shared("private", 1);
    if fs::metadata(dir.join("private")).unwrap().uid() != 0 {
        println!("skipped: not root, the other user may be this one");
        return;
    }
    let nobody = super::purging::glebe()
        .args(["reclaim", "--dry-run"])
        .arg(dir.join("private"))
        .uid(65534)
        .gid(65534)
        .output();
    let Ok(nobody) = nobody else {
        println!("skipped: the command cannot be run as another user");
        return;
    };
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("Permission denied") && said.contains("private"), "{said}");
    assert_eq!(nobody.status.code(), Some(1));
}
