//! Tests how the runtime is found.
#![allow(unsafe_code)]

use super::*;
use glebe::cuda::Runtime;
use glebe_testing::process::{child_of, is_child, passes};
use glebe_testing::tools::run;
use std::path::Path;
use std::process::Command;

#[test]
fn a_missing_runtime_is_named() {
    // SAFETY: there is no such file.
    let missing = unsafe { Runtime::load_from(Path::new("/nowhere/libcudart.so.99")) }.unwrap_err();
    assert!(matches!(&missing, CudaError::NoRuntime { .. }), "{missing}");
    assert!(missing.to_string().contains("/nowhere/libcudart.so.99"), "{missing}");
    // SAFETY: the C library has no function with a name of CUDA's.
    let other = unsafe { Runtime::load_from(Path::new("libc.so.6")) }.unwrap_err();
    assert!(matches!(&other, CudaError::NotARuntime { .. }), "{other}");
    assert!(other.to_string().contains("cudaHostRegister"), "{other}");
}

#[test]
fn the_runtime_that_is_loaded_already_is_used() {
    let Some(fake) = Fake::new() else { return };
    if is_child() {
        let reserve = reserve(4);
        let registration = Registration::new(Runtime::load().unwrap(), &reserve).unwrap();
        assert!(registration.wait_all(SOON).unwrap());
        assert!(fake.number("fake_count") > 0, "a runtime that nobody has loaded");
        return;
    }
    // The loader would find this one first, and the one of the child is loaded as `.so.12`.
    std::fs::copy(fake.path(), fake.path().with_file_name("libcudart.so")).unwrap();
    let mut child = child_of("cuda::found::the_runtime_that_is_loaded_already_is_used");
    assert!(passes(child.env("LD_LIBRARY_PATH", fake.path().parent().unwrap())));
}

#[test]
fn a_library_that_is_no_runtime_is_passed_over() {
    if is_child() {
        assert!(Runtime::load().is_ok());
        return;
    }
    let Some(fake) = Fake::new() else { return };
    let folder = fake.path().parent().unwrap().to_owned();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-x", "c", "/dev/null", "-o"]);
    run(cc.arg(folder.join("libcudart.so")));
    std::fs::copy(fake.path(), folder.join("libcudart.so.12")).unwrap();
    let mut child = child_of("cuda::found::a_library_that_is_no_runtime_is_passed_over");
    assert!(passes(child.env("LD_LIBRARY_PATH", folder)));
}

#[test]
fn the_example_runs_with_a_runtime_and_without() {
    let own = std::env::current_exe().unwrap();
    let example = own.ancestors().nth(2).unwrap().join("examples/pinned");
    if !example.exists() {
        return println!("skipped: {} is not built", example.display());
    }
    let Some(fake) = Fake::new() else { return };
    std::fs::rename(fake.path(), fake.path().with_file_name("libcudart.so")).unwrap();
    let said = |folder: &Path| {
        let mut command = Command::new(&example);
        let output = command.args(["4", "1"]).env("LD_LIBRARY_PATH", folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let with = said(fake.path().parent().unwrap());
    assert!(with.contains("4 MiB of 4 MiB after"), "{with}");
    assert!(with.lines().last().unwrap().starts_with("unregistered after"), "{with}");
    let without = said(Path::new("/nowhere"));
    if without.contains("unregistered") {
        return println!("skipped: this machine has a GPU");
    }
    assert!(without.contains("libcudart.so"), "{without}");
}
