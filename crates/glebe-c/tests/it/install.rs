//! Tests `make install` and `make uninstall`: places of files, pkg-config, CMake, examples, and
//! that a built tree needs no cargo.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use glebe_testing::Scratch;

use crate::built::{folder, has, is_built, root, run};

const PROGRAM: &str = "all.c";
const SAID: &[u8] = b"all.c: ok\n";

fn make_install(variables: &[(&str, &Path)]) {
    // Without the lock, one installation might copy files that another has half written.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let mut make = make("install", variables);
    // If `make build` came before, nothing may call cargo.
    run(if is_built() { make.env("PATH", without_cargo()) } else { &mut make });
}

/// Returns a search path on which cargo, rustc and rustup fail.
fn without_cargo() -> &'static OsStr {
    static PATH: OnceLock<OsString> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-c-without-cargo");
        fs::create_dir_all(&folder).unwrap();
        for tool in ["cargo", "rustc", "rustup"] {
            let text = "#!/bin/sh\necho \"$0 was called: make build comes first\" >&2\nexit 9\n";
            fs::write(folder.join(tool), text).unwrap();
            fs::set_permissions(folder.join(tool), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut path = folder.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        path
    })
}

fn make(what: &str, variables: &[(&str, &Path)]) -> Command {
    let mut make = Command::new("make");
    let target = folder().parent().expect("a folder of cargo's");
    let profile = folder().file_name().and_then(|name| name.to_str()).expect("a profile's name");
    let profile = if profile == "debug" { "dev" } else { profile };
    make.args(["-C", "../..", what]).current_dir(root());
    let features = if glebe::internal::sys::FAULTS { " --features glebe/faults" } else { "" };
    let packages = format!("-p glebe-c -p glebe-cli -p glebe-preload{features}");
    make.arg(format!("PROFILE={profile}")).arg(format!("PACKAGES={packages}"));
    make.env("CARGO_TARGET_DIR", target).env("CARGO", env!("CARGO"));
    // The tests' own setting, because the Makefile's default differs from cargo's.
    make.env("CARGO_INCREMENTAL", std::env::var("CARGO_INCREMENTAL").unwrap_or("1".to_owned()));
    for unset in ["DESTDIR", "PREFIX", "LIBDIR", "INCLUDEDIR", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(unset);
    }
    make.args(variables.iter().map(|(name, path)| format!("{name}={}", path.display())));
    make
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all
}

/// Returns the prefix of an installation, made once for all tests; `None` without make.
fn installed() -> Option<&'static Path> {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    if !has("make") {
        return None;
    }
    Some(PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-c-installed");
        let _ = fs::remove_dir_all(&prefix);
        make_install(&[("PREFIX", &prefix)]);
        prefix
    }))
}

fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let output = run(Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args(arguments)
        .arg("glebe"));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pkg_config_finds_it() {
    let Some(prefix) = installed() else { return };
    if !has("cc") || !has("pkg-config") {
        return;
    }
    assert_eq!(pkg_config(prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let scratch = Scratch::readable("install");
    let source = root().join("tests").join(PROGRAM);
    let program = scratch.path().join("shared");
    run(Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(pkg_config(prefix, &["--cflags", "--libs"])));
    let path = prefix.join("lib");
    assert_eq!(run(Command::new(&program).env("LD_LIBRARY_PATH", path)).stdout, SAID);

    let source = root().join("tests/v10.c");
    run(Command::new("cc")
        .args(["-include", "glebe_vrange.h", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .args(pkg_config(prefix, &["--cflags", "--libs"])));
    let path = prefix.join("lib");
    assert_eq!(run(Command::new(&program).env("LD_LIBRARY_PATH", path)).stdout, b"v10.c: ok\n");

    let source = root().join("tests").join(PROGRAM);
    let program = scratch.path().join("static");
    let words = pkg_config(prefix, &["--static", "--cflags", "--libs"]);
    let words = words.iter().map(|word| if word == "-lglebe" { "-l:libglebe.a" } else { word });
    run(Command::new("cc").arg("-o").arg(&program).arg(&source).args(words));
    assert_eq!(run(&mut Command::new(&program)).stdout, SAID);
}

#[test]
fn the_examples_compile_and_work_from_where_they_are_installed() {
    let Some(prefix) = installed() else { return };
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let examples = fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap());
    let names: Vec<_> = examples.map(|entry| entry.file_name()).collect();
    assert!(names.len() >= 6);
    let (scratch, files) = (Scratch::readable("install"), Scratch::in_memory("install"));
    for name in names {
        let source = prefix.join("share/doc/glebe/examples").join(&name);
        let program = scratch.path().join("program");
        run(Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
            .arg(&program)
            .arg(&source)
            .args(pkg_config(prefix, &["--cflags", "--libs"])));
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", prefix.join("lib")).env("XDG_RUNTIME_DIR", files.path());
        let output = run(&mut command);
        assert!(output.stdout.ends_with(b"\n"), "{name:?}: {output:?}");
    }
}

#[test]
fn a_program_without_shared_libraries_links_and_works() {
    let Some(prefix) = installed() else { return };
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let scratch = Scratch::readable("install");
    for (compiler, source) in [("cc", "all.c"), ("c++", "all.cpp"), ("clang", "all.c")] {
        if !has(compiler) {
            continue;
        }
        let program = scratch.path().join(compiler);
        run(Command::new(compiler)
            .args(["-static", "-o"])
            .arg(&program)
            .arg(root().join("tests").join(source))
            .args(pkg_config(prefix, &["--static", "--cflags", "--libs"])));
        let said = run(&mut Command::new(&program)).stdout;
        assert_eq!(String::from_utf8_lossy(&said), format!("{source}: ok\n"), "{compiler}");
    }
}

#[test]
fn cmake_finds_it() {
    let Some(prefix) = installed() else { return };
    if !has("cc") || !has("cmake") {
        return;
    }
    let scratch = Scratch::readable("install");
    let source = root().join("tests").join(PROGRAM);
    let version = env!("CARGO_PKG_VERSION");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.10)
        project(program C)
        find_package(glebe {version} REQUIRED)
        add_executable(shared {source})
        target_link_libraries(shared glebe::glebe)
        add_executable(static {source})
        target_link_libraries(static glebe::glebe_static)\n",
        source = source.display()
    );
    fs::write(scratch.path().join("CMakeLists.txt"), lists).unwrap();
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    run(Command::new("cmake").args([".", &prefix]).current_dir(scratch.path()));
    run(Command::new("cmake").args(["--build", "."]).current_dir(scratch.path()));
    for program in ["shared", "static"] {
        assert_eq!(run(&mut Command::new(scratch.path().join(program))).stdout, SAID);
    }
    // CMake must not find this version for a program that asks for a later one.
    let lists =
        "cmake_minimum_required(VERSION 3.10)\nproject(later C)\nfind_package(glebe 0.999)\n\
                 if(glebe_FOUND)\nmessage(FATAL_ERROR \"found\")\nendif()\n";
    let later = scratch.path().join("later");
    fs::create_dir(&later).unwrap();
    fs::write(later.join("CMakeLists.txt"), lists).unwrap();
    run(Command::new("cmake").args([".", &prefix]).current_dir(&later));
}

#[test]
fn destdir_is_where_files_land_and_not_what_they_say() {
    if !has("make") {
        return;
    }
    let scratch = Scratch::readable("install");
    let destination = scratch.path().join("a b");
    make_install(&[("PREFIX", Path::new("/opt/glebe")), ("DESTDIR", &destination)]);
    let lib = destination.join("opt/glebe/lib");
    let version = env!("CARGO_PKG_VERSION");
    for (link, to) in [
        ("libglebe.so", "libglebe.so.0".to_owned()),
        ("libglebe.so.0", format!("libglebe.so.{version}")),
    ] {
        assert_eq!(fs::read_link(lib.join(link)).unwrap(), Path::new(&to));
    }
    for file in ["libglebe.a", "libglebe_malloc.so", "cmake/glebe/glebeConfigVersion.cmake"] {
        assert!(lib.join(file).is_file(), "{file}");
    }
    for crate_of in ["glebe-c", "glebe-preload"] {
        for header in fs::read_dir(root().join("..").join(crate_of).join("include")).unwrap() {
            let name = header.unwrap().file_name();
            assert!(lib.join("../include").join(&name).is_file(), "{name:?}");
        }
    }
    let pc = fs::read_to_string(lib.join("pkgconfig/glebe.pc")).unwrap();
    assert!(pc.contains("prefix=/opt/glebe\n") && !pc.contains("a b") && !pc.contains('@'));
    let cmake = fs::read_to_string(lib.join("cmake/glebe/glebeConfig.cmake")).unwrap();
    assert!(cmake.contains("/../../../include\"") && !cmake.contains('@'), "{cmake}");
    for (name, command) in [("glebe.service", "serve"), ("glebe-blocks.service", "bank status")] {
        let unit = fs::read_to_string(lib.join("systemd/system").join(name)).unwrap();
        assert!(unit.contains(&format!("ExecStart=/opt/glebe/bin/glebe {command}")), "{unit}");
        assert!(!unit.contains("/usr/bin/glebe") && !unit.contains("a b"), "{unit}");
    }
    assert!(lib.join("sysusers.d/glebe.conf").is_file());
}

#[test]
fn the_command_comes_with_its_manual_and_completions() {
    let Some(prefix) = installed() else { return };
    let output = run(Command::new(prefix.join("bin/glebe")).arg("--version"));
    assert!(String::from_utf8_lossy(&output.stdout).contains(env!("CARGO_PKG_VERSION")));
    let kept = fs::read_dir(root().join("../../man")).unwrap();
    let mut pages = 0;
    for page in kept.map(|entry| entry.unwrap().path()) {
        let installed = prefix.join("share/man/man1").join(page.file_name().unwrap());
        assert_eq!(fs::read(&installed).unwrap(), fs::read(&page).unwrap(), "{installed:?}");
        pages += 1;
    }
    assert!(pages > 1);
    for file in [
        "bash-completion/completions/glebe",
        "zsh/site-functions/_glebe",
        "fish/vendor_completions.d/glebe.fish",
    ] {
        let text = fs::read_to_string(prefix.join("share").join(file)).unwrap();
        assert!(text.contains("glebe"), "{file}");
    }
}

#[test]
fn the_command_finds_the_allocator_in_its_prefix() {
    let Some(prefix) = installed() else { return };
    let glebe = prefix.join("bin/glebe");
    let maps =
        run(Command::new(glebe).args(["run", "--malloc", "--", "cat", "/proc/self/maps"])).stdout;
    let library = prefix.join("lib/libglebe_malloc.so");
    assert!(String::from_utf8(maps).unwrap().contains(library.to_str().unwrap()));
}

#[test]
fn what_is_built_is_copied_without_cargo_and_taken_away_again() {
    if installed().is_none() {
        return;
    }
    let scratch = Scratch::readable("install");
    let path = without_cargo();
    let destination = scratch.path().join("root");
    let variables = [("PREFIX", Path::new("/opt/glebe")), ("DESTDIR", &destination)];
    run(make("install", &variables).env("PATH", path));
    let there = files(&destination);
    assert!(there.len() > 20, "{there:?}");

    let own = destination.join("opt/glebe/lib/libother.so");
    fs::write(&own, "").unwrap();
    for _ in 0..2 {
        run(make("uninstall", &variables).env("PATH", path));
        assert_eq!(files(&destination), std::slice::from_ref(&own));
        for folder in ["lib/cmake/glebe", "share/doc/glebe"] {
            assert!(!destination.join("opt/glebe").join(folder).exists());
        }
    }
}
