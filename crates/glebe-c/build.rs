//! Gives the shared library its soname: the name, and what must change with its binary interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libglebe.so.0");
}
