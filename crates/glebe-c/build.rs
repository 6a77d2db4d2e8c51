//! Gives the shared library its soname, whose number changes with the binary interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libglebe.so.0");
}
