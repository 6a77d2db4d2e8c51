//! How the library may be loaded: in front of a program, and never later. Loaded into a running
//! program, its names would stand behind the C library's, and only some callers would find them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libglebe_malloc.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodlopen");
}
