//! Exports the C library's functions that ask the allocator about itself, or tune it. Amounts are
//! whole slices (64 KiB), because only mimalloc knows objects. `malloc_usable_size` asks mimalloc.
//!
//! # Safety
//! Exported for C: see the manual pages.
#![allow(unsafe_code, non_camel_case_types)]

use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};

use glebe::internal::sys::errno;
use glebe::internal::sys::files::plain_file::ERRORS;
use glebe::internal::sys::files::stream;
use pages::stats::{Format, Stats};
use pages::text::Out;
use pages::{engine, heap};

use crate::{early, entry};

/// The structure of mallinfo2(3).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// The structure of mallinfo(3).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mallinfo {
    fields: [c_int; 10],
}

/// malloc_usable_size(3).
///
/// # Safety
/// See malloc_usable_size(3).
#[no_mangle]
pub unsafe extern "C" fn malloc_usable_size(at: *const c_void) -> usize {
    if at.is_null() {
        return 0;
    }
    if early::owns(at) {
        // SAFETY: the object is from `early`.
        return unsafe { early::size_of(at) };
    }
    // SAFETY: the object is the caller's.
    unsafe { engine::mi_usable_size(at) }
}

/// malloc_trim(3). Keeps at most `keep` free bytes. Returns 1 if any memory went back.
#[no_mangle]
pub extern "C" fn malloc_trim(keep: usize) -> c_int {
    c_int::from(trim(keep) > 0)
}

pub(crate) fn trim(keep: usize) -> usize {
    if entry::catch_up() {
        heap::trim(keep)
    } else {
        0
    }
}

/// mallinfo2(3).
#[export_name = "mallinfo2"]
pub extern "C" fn get_mallinfo2() -> mallinfo2 {
    let counts = heap::counts();
    let [live, free] = [counts.live.saturating_sub(counts.tables), counts.hot + counts.volatile];
    mallinfo2 {
        arena: (live + free) as usize,
        ordblks: 1,
        uordblks: live as usize,
        fordblks: free as usize,
        keepcost: free as usize,
        ..mallinfo2::default()
    }
}

/// mallinfo(3): mallinfo2 modulo 4 GiB.
#[export_name = "mallinfo"]
pub extern "C" fn get_mallinfo() -> mallinfo {
    let all = get_mallinfo2();
    let [live, free] = [all.uordblks as c_int, all.fordblks as c_int];
    let arena = all.arena as c_int;
    mallinfo { fields: [arena, all.ordblks as c_int, 0, 0, 0, 0, 0, live, free, free] }
}

/// Another name of mallinfo(3).
#[no_mangle]
pub extern "C" fn __libc_mallinfo() -> mallinfo {
    get_mallinfo()
}

/// mallopt(3). Reports success and changes nothing, so that programs go on.
#[no_mangle]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// Another name of mallopt(3).
#[no_mangle]
pub extern "C" fn __libc_mallopt(parameter: c_int, value: c_int) -> c_int {
    mallopt(parameter, value)
}

/// malloc_stats(3): writes text to standard error.
#[no_mangle]
pub extern "C" fn malloc_stats() {
    let _ = Stats::now().write(Format::Text, &mut Out::new(&ERRORS));
}

/// malloc_info(3): writes an XML element for each number of the statistics.
///
/// # Safety
/// See malloc_info(3).
#[no_mangle]
pub unsafe extern "C" fn malloc_info(options: c_int, to: *mut c_void) -> c_int {
    if options != 0 {
        return errno::EINVAL;
    }
    if elements(&mut Stream(to)).is_ok() {
        0
    } else {
        -1
    }
}

fn elements(to: &mut Stream) -> fmt::Result {
    to.write_str("<malloc version=\"glebe-1\">\n")?;
    for row in Stats::now().rows() {
        writeln!(to, "<{0}>{1}</{0}>", row.name, row.value)?;
    }
    to.write_str("</malloc>\n")
}

struct Stream(*mut c_void);

impl Write for Stream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: malloc_info's caller vouches for the stream.
        if unsafe { stream::write(self.0, text.as_bytes()) } {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}
