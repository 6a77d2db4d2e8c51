//! Functions of the C library that this library calls for what it does not answer itself. It looks
//! them up before the program begins, because the loader may take locks.
#![allow(unsafe_code)] // Safety: see `Next::call`.

use std::ffi::{c_long, c_void, CStr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use glebe_os::internal::sys::errno::{self, ENOSYS};
use glebe_os::internal::sys::processes::symbols::behind;

pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// fcntl(2), which also has commands that the kernel lacks.
pub(crate) static FCNTL: Next = Next::new(c"fcntl");
/// syscall(2).
pub(crate) static SYSCALL: Next = Next::new(c"syscall");

#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    FCNTL.find();
    SYSCALL.find();
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    fn find(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        let found = behind(self.name, &[]);
        self.found.store(found, Relaxed);
        found
    }

    /// Calls the function with seven words. It may read fewer.
    ///
    /// # Safety
    /// The function takes numbers and addresses: see its manual page.
    pub(crate) unsafe fn call(&self, words: [usize; 7]) -> c_long {
        let found = self.find();
        if found.is_null() {
            errno::set(ENOSYS);
            return -1;
        }
        let [a, b, c, d, e, f, g] = words;
        // SAFETY: the C library's functions take any number of words, and the caller keeps the
        // contract.
        unsafe {
            let call: unsafe extern "C" fn(usize, ...) -> c_long = std::mem::transmute(found);
            call(a, b, c, d, e, f, g)
        }
    }
}
