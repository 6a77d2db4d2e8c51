//! Version, page size, names of codes, text of the last error.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, CStr};

use crate::abi::*;
use crate::boundary;

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a version without an end mark inside"),
    };

#[no_mangle]
pub extern "C" fn glebe_version() -> *const c_char {
    VERSION.as_ptr()
}

#[no_mangle]
pub extern "C" fn glebe_page_bytes() -> u64 {
    std::panic::catch_unwind(|| glebe::sys::page_size().bytes().get()).unwrap_or(0)
}

#[no_mangle]
pub extern "C" fn glebe_last_error() -> *const c_char {
    boundary::last_error()
}

#[no_mangle]
pub extern "C" fn glebe_error_name(code: c_int) -> *const c_char {
    name_of(code).unwrap_or(c"unknown").as_ptr()
}
