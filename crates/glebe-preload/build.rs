//! Links the library so that dlopen(3) refuses it. The loader would search a library loaded later
//! only after the C library, so most callers would not find its functions. Also detects compilers
//! with naked functions.

use std::env;
use std::process::Command;

/// First minor version of Rust 1 with `naked` functions.
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

fn minor() -> Option<u32> {
    let said = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    said.split('.').nth(1)?.parse().ok()
}
