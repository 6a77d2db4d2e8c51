//! [`Trim::call`]: makes this process's allocator give back what it can. Source: malloc_trim(3),
//! jemalloc(3), the headers of mimalloc and gperftools.
//!
//! # Safety
//! Functions come from the loader by name, and are called with the types of their headers.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::transmute;
use std::ptr;

use super::peer::Trim;
use crate::Outcome;

type Mallctl =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

impl Trim {
    pub(super) fn call(self) -> Outcome {
        match self {
            Self::Libc => {
                let trim = found(c"malloc_trim")?;
                // SAFETY: malloc_trim(3) has this type, and takes any number.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(trim)(0) };
            }
            Self::Jemalloc => {
                // SAFETY: jemalloc(3) gives mallctl this type; both controls take no value.
                let mallctl = unsafe { transmute::<*mut c_void, Mallctl>(found(c"mallctl")?) };
                // 4096 means all arenas.
                for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
                    let (none, len) = (ptr::null_mut(), ptr::null_mut());
                    // SAFETY: as above; null pointers mean no value.
                    unsafe { mallctl(name.as_ptr(), none, len, none, 0) };
                }
            }
            Self::Mimalloc => {
                let collect = found(c"mi_collect")?;
                // SAFETY: mimalloc.h declares this type.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn(bool)>(collect)(true) };
            }
            Self::Tcmalloc => {
                let release = found(c"MallocExtension_ReleaseFreeMemory")?;
                // SAFETY: malloc_extension_c.h declares this type.
                unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(release)() };
            }
        }
        Ok(())
    }
}

/// Returns the address of `name` in the first library that has it; never null.
fn found(name: &CStr) -> Outcome<*mut c_void> {
    // SAFETY: the name ends with a zero.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match at.is_null() {
        true => Err(format!("{name:?}: this allocator has no such call").into()),
        false => Ok(at),
    }
}
