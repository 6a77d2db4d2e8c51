//! Allocates objects from the heap, and reads facts about this process.
//!
//! # Safety
//! Only owners touch their objects, within the object's size.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::{Duration, Instant};

use glebe_malloc::gate::Gate;
use glebe_malloc::{engine, heap};
use glebe_testing::time::slowed;

pub static GATE: Gate = Gate::new();

pub fn alloc(size: usize) -> *mut u8 {
    if GATE.is_due(size) {
        heap::at_entry(&GATE, size);
    }
    // SAFETY: any size is valid.
    unsafe { engine::mi_malloc(size).cast() }
}

pub fn free(at: *mut u8) {
    // SAFETY: the object is from `alloc`.
    unsafe { engine::mi_free(at.cast::<c_void>()) }
}

pub fn page() -> usize {
    glebe::page_size().bytes().as_usize()
}

/// An object with a pattern in each page.
pub struct Object {
    at: *mut u8,
    size: usize,
    value: u8,
}

// SAFETY: the object owns its memory.
unsafe impl Send for Object {}

impl Object {
    pub fn new(size: usize, value: u8) -> Option<Self> {
        let at = alloc(size);
        if at.is_null() {
            return None;
        }
        let object = Self { at, size, value };
        // SAFETY: the byte is within the object.
        object.each(|byte| unsafe { byte.write(value) });
        Some(object)
    }

    fn each(&self, mut visit: impl FnMut(*mut u8)) {
        // SAFETY: the byte is within the object.
        (0..self.size).step_by(page()).for_each(|at| visit(unsafe { self.at.add(at) }));
    }

    pub fn is_whole(&self) -> bool {
        let mut is_whole = true;
        // SAFETY: the byte is within the object, and was written.
        self.each(|byte| is_whole &= unsafe { byte.read() } == self.value);
        is_whole
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        assert!(self.is_whole() || std::thread::panicking(), "memory in use has changed");
        free(self.at);
    }
}

pub fn objects(count: usize, size: usize) -> Vec<Object> {
    (0..count).map(|nth| Object::new(size, nth as u8 | 1).expect("memory")).collect()
}

/// Waits until `is_so`. Returns false after 20 s or more. Allocates while it waits, because
/// allocating calls start the heap's thread.
pub fn comes(is_so: impl Fn() -> bool) -> bool {
    let (begin, most) = (Instant::now(), slowed(Duration::from_secs(20)));
    while !is_so() {
        if begin.elapsed() > most {
            return false;
        }
        free(alloc(64));
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns a number of /proc/self/status, without its unit.
pub fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().split(' ').next().unwrap().parse().unwrap()
}

pub fn limit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads a local.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

pub fn ended_well(child: libc::pid_t) -> bool {
    exit_of(child) == Some(0)
}

/// Waits for a child. Returns its exit status, or `None` if a signal ended it.
pub fn exit_of(child: libc::pid_t) -> Option<libc::c_int> {
    let mut status = 0;
    // SAFETY: the call fills a local.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    (waited == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}
