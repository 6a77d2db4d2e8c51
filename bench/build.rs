//! Builds mimalloc as a shared library for the benchmark `malloc`, from the source that glebe uses,
//! with the definitions of mimalloc's release build.
//!
//! Sets `GLEBE_BENCH_MIMALLOC` to the library's path, or `GLEBE_BENCH_NO_MIMALLOC` to the reason
//! why the build failed. `GLEBE_BENCH_C` is the source folder, which that benchmark compiles as its
//! C project.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match mimalloc() {
        Ok(path) => println!("cargo:rustc-env=GLEBE_BENCH_MIMALLOC={}", path.display()),
        Err(why) => println!("cargo:rustc-env=GLEBE_BENCH_NO_MIMALLOC={}", one_line(&why)),
    }
}

fn mimalloc() -> Result<PathBuf, String> {
    let var = |name: &str| env::var(name).map_err(|e| format!("{name}: {e}"));
    let include = var("DEP_MIMALLOC_INCLUDE_DIR")?;
    let source = Path::new(&include).with_file_name("src");
    println!("cargo:rustc-env=GLEBE_BENCH_C={}", source.display());
    let library = Path::new(&var("OUT_DIR")?).join("libmimalloc.so");
    let mut build = cc::Build::new();
    // The benchmark compares release builds, so mimalloc is optimized in every cargo profile.
    build.opt_level(3).debug(false).pic(true).warnings(false).include(&include).include(&source);
    for name in ["NDEBUG", "MI_BUILD_RELEASE", "MI_MALLOC_OVERRIDE", "MI_SHARED_LIB"] {
        build.define(name, None);
    }
    build.define("MI_SHARED_LIB_EXPORT", None).flag("-ftls-model=initial-exec");
    build.flag("-fno-builtin-malloc").flag("-fvisibility=hidden");
    let mut command = build.try_get_compiler().map_err(|e| e.to_string())?.to_command();
    command.arg("-shared").arg("-o").arg(&library).arg(source.join("static.c")).arg("-lpthread");
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(library),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
