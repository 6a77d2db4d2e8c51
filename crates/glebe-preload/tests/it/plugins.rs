//! Tests libraries that a running program loads.

use std::fs;
use std::process::Command;

use glebe_testing::Scratch;

use crate::built::{compile, has, preloaded, run, stdout};

/// Loads a plugin as PHP does. The calling library has its own search path, so the loader must find
/// out which library called dlopen.
#[test]
fn a_plugin_that_binds_deep_has_the_same_malloc() {
    if !has("cc") {
        return;
    }
    let (scratch, inner) = (Scratch::readable("plugins"), Scratch::readable("plugins-inner"));
    let (folder, inside) = (scratch.path(), inner.path().display());
    let plugin = compile(&inner, "deepbind.c", &["-DPLUGIN", "-shared", "-fPIC"]);
    fs::rename(plugin, inner.path().join("libplugin.so")).unwrap();
    let to_inside = format!("-Wl,--enable-new-dtags,-rpath,{inside}");
    let middle = ["-DMIDDLE", "-shared", "-fPIC", &to_inside, "-Wl,-soname,libmiddle.so"];
    fs::rename(compile(&scratch, "deepbind.c", &middle), folder.join("libmiddle.so")).unwrap();
    let (at, path) = (format!("-L{}", folder.display()), folder.display());
    let to_middle = format!("-Wl,--enable-new-dtags,-rpath,{path}");
    let program = compile(&scratch, "deepbind.c", &[&at, &to_middle, "-lmiddle"]);
    assert_eq!(stdout(&run(&mut Command::new(&program))), "deepbind_opens=0\n");
    for options in ["", "pages=off"] {
        let said = stdout(&run(&mut preloaded(&program, options)));
        assert_eq!(said, "deepbind_opens=1\n", "{options}");
    }
}
