//! Compiles what names mimalloc's locks, by the headers of the version that is linked.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=src/locks.c");
    // Under `--cfg loom` there is no mimalloc.
    let Ok(include) = env::var("DEP_MIMALLOC_INCLUDE_DIR") else { return };
    let mut build = cc::Build::new();
    build.file("src/locks.c").include(include).warnings(false);
    // As libmimalloc-sys is built.
    build.define("MI_DEBUG", "0").compile("glebe_engine_locks");
}
