//! [`Trim::call`]: has the allocator that this process was started with give back what it can.
//! Source: malloc_trim(3), jemalloc(3), the headers of mimalloc and gperftools.
//!
//! # Safety
//! A name is looked up where the loader put it, and called by the type that its header gives it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::transmute;
use std::ptr;

use super::peer::Trim;
use crate::Outcome;

type Mallctl =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

impl Trim {
    /// Calls it; an error if the allocator lacks it.
    pub(super) fn call(self) -> Outcome {
        match self {
            Self::Libc => {
                let trim = found(c"malloc_trim")?;
                // SAFETY: malloc_trim(3) has this type, and takes any number.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(trim)(0) };
            }
            Self::Jemalloc => {
                // SAFETY: jemalloc(3) has this type; the names are of controls without a value.
                let mallctl = unsafe { transmute::<*mut c_void, Mallctl>(found(c"mallctl")?) };
                // 4096 stands for all arenas.
                for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
                    let (none, len) = (ptr::null_mut(), ptr::null_mut());
                    // SAFETY: as above.
                    unsafe { mallctl(name.as_ptr(), none, len, none, 0) };
                }
            }
            Self::Mimalloc => {
                let collect = found(c"mi_collect")?;
                // SAFETY: mimalloc.h has this type.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn(bool)>(collect)(true) };
            }
            Self::Tcmalloc => {
                let release = found(c"MallocExtension_ReleaseFreeMemory")?;
                // SAFETY: malloc_extension_c.h has this type.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(release)() };
            }
        }
        Ok(())
    }
}

/// Where the first library that has it has this name; never null.
fn found(name: &CStr) -> Outcome<*mut c_void> {
    // SAFETY: the name ends with a zero.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match at.is_null() {
        true => Err(format!("{name:?}: this allocator has no such call").into()),
        false => Ok(at),
    }
}
