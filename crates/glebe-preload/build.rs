//! How the library may be loaded: in front of a program, and never later. Loaded into a running
//! program, its names would stand behind the C library's, and only some callers would find them.
//! And whether the compiler takes functions without a prologue.

use std::env;
use std::process::Command;

/// The compiler's first version with `naked` functions: 1.88.
const NAKED: u32 = 88;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libglebe_malloc.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodlopen");
    println!("cargo::rustc-check-cfg=cfg(has_naked)");
    if minor().is_some_and(|minor| minor >= NAKED) {
        println!("cargo:rustc-cfg=has_naked");
    }
}

/// The second number of the compiler's version.
fn minor() -> Option<u32> {
    let said = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    said.split('.').nth(1)?.parse().ok()
}
