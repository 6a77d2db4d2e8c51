//! Tests that `glebe run` refuses programs whose loader ignores the library, and that the loader
//! does ignore it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{setxattr, statvfs, StatVfsMountFlags, XattrFlags};
use rustix::process::getuid;

use super::{as_nobody, cc, ok, refused, said, takes_library, Place, MAPS, NOBODY};

const STATIC_CAT: &str = r#"
#include <stdio.h>
int main(int count, char **arguments) {
    FILE *file = fopen(arguments[count - 1], "r");
    for (int byte; file && (byte = getc(file)) != EOF;) putchar(byte);
    return !file;
}
"#;

#[test]
fn a_static_program_is_refused() {
    let Some(place) = Place::with_library() else { return };
    for how in ["-static", "-static-pie"] {
        let program = place.path(how);
        if !cc(STATIC_CAT, &program, &[how]) {
            continue;
        }
        assert!(!takes_library(&place.library(), &mut Command::new(&program)));
        let line = refused(&mut place.malloc(&program, &[MAPS]), 125);
        assert!(line.contains("is linked statically"), "{line}");
        assert!(line.contains("without -static"), "{line}");
    }
}

#[test]
fn a_program_for_another_c_library_is_refused() {
    let Some(place) = Place::with_library() else { return };
    for (loader, libc) in [
        ("/lib/ld-musl-x86_64.so.1", "musl"),
        ("/lib/ld-uClibc.so.0", "uClibc"),
        ("/system/bin/linker64", "Android's C library"),
    ] {
        let option = format!("-Wl,--dynamic-linker={loader}");
        let Some(program) = place.compile(libc.split('\'').next().unwrap(), &[&option]) else {
            return;
        };
        let line = refused(&mut place.malloc(&program, &[]), 125);
        assert!(line.contains(&format!("uses {libc} (its loader is {loader})")), "{line}");
    }
    // A GNU loader's name is accepted at any path. Here execve(2) fails, because the file is
    // missing.
    let Some(program) = place.compile("nix", &["-Wl,--dynamic-linker=/nix/ld-linux.so.2"]) else {
        return;
    };
    assert!(refused(&mut place.malloc(&program, &[]), 127).contains("execve("));
}

fn patched(place: &Place, name: &str, program: &Path, patches: &[(usize, &[u8])]) -> PathBuf {
    let mut bytes = fs::read(program).unwrap();
    for (at, patch) in patches {
        bytes[*at..at + patch.len()].copy_from_slice(patch);
    }
    place.write(name, bytes)
}

#[test]
fn a_program_for_another_processor_is_refused() {
    let Some(place) = Place::with_library() else { return };
    let cat = place.cat("cat");
    let riscv = 243_u16.to_ne_bytes();
    let other = patched(&place, "riscv", &cat, &[(18, &riscv)]);
    let line = refused(&mut place.malloc(&other, &[]), 125);
    assert!(line.contains("riscv is for riscv (64 bits), and the library for "), "{line}");
    let unknown = patched(&place, "unknown", &cat, &[(18, &0xABCD_u16.to_ne_bytes())]);
    let line = refused(&mut place.malloc(&unknown, &[]), 125);
    assert!(line.contains("is for ELF machine 43981 (64 bits)"), "{line}");
    let mut header = vec![0; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    header[16..20].copy_from_slice(&[2, 0, 3, 0]);
    header[20] = 1;
    let line = refused(&mut place.malloc(place.write("i386", &header), &[]), 125);
    assert!(line.contains("is for i386 (32 bits)"), "{line}");
}

#[test]
fn a_damaged_program_cannot_be_executed() {
    let Some(place) = Place::with_library() else { return };
    let cat = place.cat("cat");
    let whole = fs::read(&cat).unwrap();
    // The files have headers beyond the end, a loader path that is too long, or a missing end.
    let part = |index: usize| 64 + 56 * index;
    let is_loader = |index: &usize| whole[part(*index)..][..4] == 3_u32.to_ne_bytes();
    let loader = (0..13).find(is_loader).expect("a loader's path");
    let long = 4097_u64.to_ne_bytes();
    let mut damaged = vec![
        patched(&place, "headers", &cat, &[(32, &[0xFF; 8])]),
        patched(&place, "loader", &cat, &[(part(loader) + 32, &long)]),
    ];
    damaged
        .extend([4, 5, 16, 63, 64, 100].map(|len| place.write(format!("c{len}"), &whole[..len])));
    for program in damaged {
        let line = refused(&mut place.malloc(&program, &[]), 126);
        assert!(line.contains("damaged ELF"), "{line}");
    }
}

fn has_setuid(place: &Place) -> bool {
    let fs = statvfs(place.0.path()).unwrap();
    let has = getuid().is_root() && !fs.f_flag.contains(StatVfsMountFlags::NOSUID);
    if !has {
        println!("skipped: setuid programs (the caller is not root, or the mount is nosuid)");
    }
    has
}

#[test]
fn a_program_that_runs_as_another_user_or_group_is_refused() {
    let Some(place) = Place::with_library() else { return };
    if !has_setuid(&place) {
        return;
    }
    for (name, mode, about) in [
        ("setuid", 0o4755, "runs as user 65534, not as its caller (setuid)"),
        ("setgid", 0o2755, "runs as group 65534, not as its caller's (setgid)"),
    ] {
        let cat = place.cat(name);
        chown(&cat, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&cat, Permissions::from_mode(mode)).unwrap();
        assert!(!takes_library(&place.library(), &mut Command::new(&cat)));
        let line = refused(&mut place.malloc(&cat, &[MAPS]), 125);
        assert!(line.contains(about) && line.contains("put `glebe run` after it"), "{line}");
    }
}

#[test]
fn a_program_that_gains_nothing_by_its_bits_is_run() {
    let Some(place) = Place::with_library() else { return };
    let library = place.library();
    let runs = |cat: &Path| {
        assert!(takes_library(&library, &mut Command::new(cat)));
        let maps = ok(&mut place.malloc(cat, &[MAPS]));
        assert!(maps.contains(library.to_str().unwrap()), "{cat:?}");
    };
    let own = place.cat("own");
    fs::set_permissions(&own, Permissions::from_mode(0o6755)).unwrap();
    runs(&own);
    if !has_setuid(&place) {
        return;
    }
    // Setgid without group execute permission has another meaning.
    let lock = place.cat("lock");
    chown(&lock, None, Some(NOBODY)).unwrap();
    fs::set_permissions(&lock, Permissions::from_mode(0o2745)).unwrap();
    runs(&lock);
    // A process with no_new_privs ignores the bits.
    let cat = place.cat("setuid");
    chown(&cat, Some(NOBODY), None).unwrap();
    fs::set_permissions(&cat, Permissions::from_mode(0o4755)).unwrap();
    let Ok(output) = Command::new("setpriv")
        .args(["--no-new-privs", "--"])
        .arg(place.path("bin/glebe"))
        .args(["run", "--malloc", "--"])
        .arg(&cat)
        .arg(MAPS)
        .output()
    else {
        return println!("skipped: no setpriv on this machine");
    };
    assert!(said(&output).0.contains(library.to_str().unwrap()), "{output:?}");
}

/// VFS_CAP_REVISION_2 with the effective bit, and CAP_NET_BIND_SERVICE.
const CAPABILITIES: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];

#[test]
fn a_program_with_capabilities_is_refused_where_they_count() {
    let Some(place) = Place::with_library() else { return };
    let cat = place.cat("capable");
    let value: Vec<u8> = CAPABILITIES.iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Err(e) = setxattr(&cat, "security.capability", &value, XattrFlags::empty()) {
        return println!("skipped: file capabilities: {e}");
    }
    // Root gains nothing.
    assert!(ok(&mut place.malloc(&cat, &[MAPS])).contains(place.library().to_str().unwrap()));
    if !has_setuid(&place) {
        return;
    }
    let mut bare = Command::new(&cat);
    let Some(bare) = as_nobody(&mut bare) else { return };
    let bare = bare.arg(MAPS).env("LD_PRELOAD", place.library()).output().unwrap();
    // A process that gained capabilities cannot read its maps.
    assert!(!said(&bare).0.contains(place.library().to_str().unwrap()), "{bare:?}");
    let mut command = place.malloc(&cat, &[MAPS]);
    let line = refused(as_nobody(&mut command).expect("as before"), 125);
    assert!(line.contains("gains capabilities of its file"), "{line}");
}

#[test]
fn what_cannot_be_read_is_run_with_a_warning() {
    let Some(place) = Place::with_library() else { return };
    let echo = place.copy("/bin/echo", "echo");
    fs::set_permissions(&echo, Permissions::from_mode(0o111)).unwrap();
    let mut command = place.malloc(&echo, &["here"]);
    if getuid().is_root() {
        as_nobody(&mut command); // Root could read the file.
    }
    let output = command.output().unwrap();
    let (out, err) = said(&output);
    assert!(output.status.success() && out == "here\n", "{output:?}");
    assert!(err.lines().count() == 1 && err.contains("cannot be read"), "{err}");
}

#[test]
fn the_loader_itself_runs_what_it_is_given() {
    let Some(place) = Place::with_library() else { return };
    let loader = format!("/lib64/ld-linux-{}.so.2", std::env::consts::ARCH.replace('_', "-"));
    let loaders = [loader.as_str(), "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loaders.into_iter().find(|loader| Path::new(loader).exists()) else {
        return println!("skipped: none of {loaders:?} is here");
    };
    let maps = ok(&mut place.malloc(loader, &[place.cat("cat").to_str().unwrap(), MAPS]));
    assert!(maps.contains(place.library().to_str().unwrap()));
}
