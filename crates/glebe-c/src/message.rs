//! Version, page size, names of codes, text of the last error.
//!
//! # Safety
//! Exporting a symbol is what is unsafe here: the names are the header's, and nobody else's.
#![allow(unsafe_code)]

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
    let name = match code {
        GLEBE_OK => c"GLEBE_OK",
        GLEBE_ERROR_PANIC => c"GLEBE_ERROR_PANIC",
        GLEBE_ERROR_FORKED => c"GLEBE_ERROR_FORKED",
        GLEBE_ERROR_BAD_HANDLE => c"GLEBE_ERROR_BAD_HANDLE",
        GLEBE_ERROR_NULL => c"GLEBE_ERROR_NULL",
        GLEBE_ERROR_BAD_SIZE => c"GLEBE_ERROR_BAD_SIZE",
        GLEBE_ERROR_BAD_ARGUMENT => c"GLEBE_ERROR_BAD_ARGUMENT",
        GLEBE_ERROR_BUSY => c"GLEBE_ERROR_BUSY",
        GLEBE_ERROR_TOO_MANY => c"GLEBE_ERROR_TOO_MANY",
        GLEBE_ERROR_ZERO_PAGES => c"GLEBE_ERROR_ZERO_PAGES",
        GLEBE_ERROR_BAD_ALIGN => c"GLEBE_ERROR_BAD_ALIGN",
        GLEBE_ERROR_NO_RUN => c"GLEBE_ERROR_NO_RUN",
        GLEBE_ERROR_WOULD_WAIT => c"GLEBE_ERROR_WOULD_WAIT",
        GLEBE_ERROR_BAD_PAGE_LEN => c"GLEBE_ERROR_BAD_PAGE_LEN",
        GLEBE_ERROR_BAD_LEN => c"GLEBE_ERROR_BAD_LEN",
        GLEBE_ERROR_NO_MEMORY => c"GLEBE_ERROR_NO_MEMORY",
        GLEBE_ERROR_NO_SOURCE => c"GLEBE_ERROR_NO_SOURCE",
        GLEBE_ERROR_NOT_CONTIGUOUS => c"GLEBE_ERROR_NOT_CONTIGUOUS",
        GLEBE_ERROR_OS => c"GLEBE_ERROR_OS",
        GLEBE_ERROR_OTHER => c"GLEBE_ERROR_OTHER",
        GLEBE_ERROR_UNALIGNED => c"GLEBE_ERROR_UNALIGNED",
        GLEBE_ERROR_EMPTY => c"GLEBE_ERROR_EMPTY",
        GLEBE_ERROR_BEYOND => c"GLEBE_ERROR_BEYOND",
        GLEBE_ERROR_MARKED => c"GLEBE_ERROR_MARKED",
        GLEBE_ERROR_UNMAPPED => c"GLEBE_ERROR_UNMAPPED",
        GLEBE_ERROR_LOCKED => c"GLEBE_ERROR_LOCKED",
        GLEBE_ERROR_HUGETLB => c"GLEBE_ERROR_HUGETLB",
        GLEBE_ERROR_SHARED => c"GLEBE_ERROR_SHARED",
        GLEBE_ERROR_FILE_PRIVATE => c"GLEBE_ERROR_FILE_PRIVATE",
        GLEBE_ERROR_READ_ONLY => c"GLEBE_ERROR_READ_ONLY",
        GLEBE_ERROR_SPECIAL => c"GLEBE_ERROR_SPECIAL",
        GLEBE_ERROR_MAP_BUDGET => c"GLEBE_ERROR_MAP_BUDGET",
        GLEBE_ERROR_SELF_TEST => c"GLEBE_ERROR_SELF_TEST",
        GLEBE_ERROR_STUCK => c"GLEBE_ERROR_STUCK",
        GLEBE_ERROR_ADOPTED => c"GLEBE_ERROR_ADOPTED",
        GLEBE_ERROR_HANDLER_COVERED => c"GLEBE_ERROR_HANDLER_COVERED",
        GLEBE_ERROR_STALE => c"GLEBE_ERROR_STALE",
        GLEBE_ERROR_FOREIGN => c"GLEBE_ERROR_FOREIGN",
        GLEBE_ERROR_TOO_LONG => c"GLEBE_ERROR_TOO_LONG",
        GLEBE_ERROR_BUFFER_TOO_SMALL => c"GLEBE_ERROR_BUFFER_TOO_SMALL",
        GLEBE_ERROR_FULL => c"GLEBE_ERROR_FULL",
        GLEBE_ERROR_LIMIT_BELOW_HELD => c"GLEBE_ERROR_LIMIT_BELOW_HELD",
        GLEBE_ERROR_NO_BUDGET => c"GLEBE_ERROR_NO_BUDGET",
        GLEBE_ERROR_BAD_RULES => c"GLEBE_ERROR_BAD_RULES",
        GLEBE_ERROR_CORRUPT => c"GLEBE_ERROR_CORRUPT",
        GLEBE_ERROR_BAD_DICTIONARY => c"GLEBE_ERROR_BAD_DICTIONARY",
        GLEBE_ERROR_FIXED_LEN => c"GLEBE_ERROR_FIXED_LEN",
        GLEBE_ERROR_NO_ROOM => c"GLEBE_ERROR_NO_ROOM",
        GLEBE_ERROR_NOT_GIVEN => c"GLEBE_ERROR_NOT_GIVEN",
        _ => c"unknown",
    };
    name.as_ptr()
}
