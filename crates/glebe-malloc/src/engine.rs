//! What is used of mimalloc: objects by its calls, and memory handed to it.
//!
//! Source: mimalloc.h of version 3.3.2.
//!
//! # Safety
//! The functions are C's: they take and give what malloc(3) does, and nothing is checked here.
#![allow(unsafe_code)]

pub use libmimalloc_sys::{
    mi_calloc, mi_collect, mi_free, mi_good_size, mi_is_in_heap_region, mi_malloc,
    mi_malloc_aligned, mi_process_init, mi_realloc, mi_realloc_aligned, mi_register_error,
    mi_usable_size, mi_zalloc, mi_zalloc_aligned,
};
