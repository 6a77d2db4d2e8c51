//! Links the library so that dlopen(3) refuses it: calls before it would have passed.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libglebe_huge.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodlopen");
}
