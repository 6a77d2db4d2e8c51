//! [`Fake`] is a fake CUDA runtime, which needs no GPU and checks each call.
#![allow(unsafe_code)] // Safety: the functions have the types of their C source.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::process::Command;

use glebe::cuda::Runtime;
use glebe::units::Bytes;
use glebe_testing::tools::{has, run};
use glebe_testing::Scratch;
use libloading::os::unix::Library;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../glebe-python/tests/fake_cudart.c");

pub struct Fake {
    folder: Scratch,
    library: Library,
}

impl Fake {
    /// Compiles and loads the library; `None` without a C compiler.
    pub fn new() -> Option<Self> {
        if !has("cc") {
            return None;
        }
        let folder = Scratch::new("cuda");
        let path = folder.path().join("libfake.so");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]);
        run(cc.arg("-Wl,-soname,libcudart.so.12").arg("-o").arg(&path).arg(SOURCE));
        // SAFETY: its initializer keeps a process number.
        let library = unsafe { Library::new(&path) }.unwrap();
        Some(Self { folder, library })
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("libfake.so")
    }

    pub fn runtime(&self) -> Runtime {
        // SAFETY: the functions have CUDA's types.
        unsafe { Runtime::load_from(&self.path()) }.unwrap()
    }

    /// Calls a function of two numbers or less. C's convention ignores the others.
    fn call(&self, name: &str, (one, other): (i32, i32)) -> i32 {
        // SAFETY: all functions of numbers return a number or nothing.
        unsafe {
            let function =
                self.library.get::<unsafe extern "C" fn(c_int, c_int) -> c_int>(name.as_bytes());
            function.unwrap()(one, other)
        }
    }

    pub fn set(&self, name: &str, value: i32) {
        self.call(name, (value, 0));
    }

    /// Lets the `nth` call from now of `fake_fail_...` fail with `code`.
    pub fn fail(&self, name: &str, nth: i32, code: i32) {
        self.call(name, (nth, code));
    }

    pub fn number(&self, name: &str) -> i32 {
        self.call(name, (0, 0))
    }

    pub fn number_of(&self, name: &str, nth: i32) -> i32 {
        self.call(name, (nth, 0))
    }

    /// Returns address and length of each registered piece, in the order of the calls.
    pub fn ranges(&self) -> Vec<(usize, Bytes)> {
        // SAFETY: the types of the C source.
        unsafe {
            let start =
                self.library.get::<unsafe extern "C" fn(c_int) -> *mut c_void>(b"fake_start");
            let length = self.library.get::<unsafe extern "C" fn(c_int) -> usize>(b"fake_length");
            let (start, length) = (start.unwrap(), length.unwrap());
            let of = |nth| (start(nth) as usize, Bytes::new(length(nth) as u64));
            (0..self.number("fake_count")).map(of).collect()
        }
    }

    pub fn is_registered(&self, start: *const u8, len: usize) -> bool {
        // SAFETY: the types of the C source.
        unsafe {
            let function = self
                .library
                .get::<unsafe extern "C" fn(*const u8, usize) -> c_int>(b"fake_is_registered");
            function.unwrap()(start, len) != 0
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.number("fake_count"), 0, "pieces are left");
            assert_eq!(self.number("fake_violations"), 0);
            assert_eq!(self.number("fake_pending"), 0, "an error is left for a later call");
        }
    }
}
