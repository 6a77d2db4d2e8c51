//! C++'s operators `delete`, by their mangled names.
//!
//! All but two operators call another operator by its name, as the standard says, so a program's
//! own replacement is called. Sizes are ignored. Source: see `new.rs`.
//!
//! # Safety
//! Exported for C++: each operator takes an object that the operator `new` of its kind made.
#![allow(unsafe_code, non_snake_case)]

use core::ffi::c_void;

use crate::malloc;

/// `const std::nothrow_t &`.
type Tag = *const c_void;

/// The operators in use: this library's, or the program's.
mod current {
    use core::ffi::c_void;

    extern "C" {
        #[link_name = "_ZdlPv"]
        pub(super) fn delete(at: *mut c_void);
        #[link_name = "_ZdaPv"]
        pub(super) fn delete_array(at: *mut c_void);
        #[link_name = "_ZdlPvSt11align_val_t"]
        pub(super) fn delete_aligned(at: *mut c_void, align: usize);
        #[link_name = "_ZdaPvSt11align_val_t"]
        pub(super) fn delete_array_aligned(at: *mut c_void, align: usize);
    }
}

macro_rules! operators {
    ($(
        $what:literal $name:ident($($more:ident: $type:ty),*) => $call:path, ($($passed:ident),*);
    )*) => {$(
        #[doc = concat!("`operator ", $what, "`.")]
        ///
        /// # Safety
        /// See C++23, new.delete.
        #[no_mangle]
        #[inline(never)]
        pub unsafe extern "C" fn $name(at: *mut c_void, $($more: $type),*) {
            // SAFETY: the caller keeps the contract.
            unsafe { $call(at, $($passed),*) }
        }
    )*};
}

operators! {
    "delete(void *)" _ZdlPv() => malloc::free, ();
    "delete(void *, std::size_t)" _ZdlPvm(_size: usize) => current::delete, ();
    "delete(void *, const std::nothrow_t &)" _ZdlPvRKSt9nothrow_t(_tag: Tag) => current::delete, ();
    "delete[](void *)" _ZdaPv() => current::delete, ();
    "delete[](void *, std::size_t)" _ZdaPvm(_size: usize) => current::delete_array, ();
    "delete[](void *, const std::nothrow_t &)"
        _ZdaPvRKSt9nothrow_t(_tag: Tag) => current::delete_array, ();
    "delete(void *, std::align_val_t)" _ZdlPvSt11align_val_t(_align: usize) => malloc::free, ();
    "delete(void *, std::size_t, std::align_val_t)"
        _ZdlPvmSt11align_val_t(_size: usize, align: usize) => current::delete_aligned, (align);
    "delete(void *, std::align_val_t, const std::nothrow_t &)"
        _ZdlPvSt11align_val_tRKSt9nothrow_t(align: usize, _tag: Tag)
            => current::delete_aligned, (align);
    "delete[](void *, std::align_val_t)"
        _ZdaPvSt11align_val_t(align: usize) => current::delete_aligned, (align);
    "delete[](void *, std::size_t, std::align_val_t)"
        _ZdaPvmSt11align_val_t(_size: usize, align: usize)
            => current::delete_array_aligned, (align);
    "delete[](void *, std::align_val_t, const std::nothrow_t &)"
        _ZdaPvSt11align_val_tRKSt9nothrow_t(align: usize, _tag: Tag)
            => current::delete_array_aligned, (align);
}
