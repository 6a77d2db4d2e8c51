//! Compiles the file that names mimalloc's locks, with the linked version's headers.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=src/locks.c");
    let Ok(include) = env::var("DEP_MIMALLOC_INCLUDE_DIR") else { return };
    let mut build = cc::Build::new();
    build.file("src/locks.c").include(include).warnings(false);
    // libmimalloc-sys defines `MI_DEBUG` too.
    build.define("MI_DEBUG", "0").compile("glebe_engine_locks");
}
