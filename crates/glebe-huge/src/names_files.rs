//! The C library's names for files of huge pages.
//!
//! The optional last argument of open(2) is read only where open(2) reads it.
//!
//! # Safety
//! Exported for C: see the manual page of each.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void, CStr};
use std::os::fd::IntoRawFd;

use glebe_os::internal::sys::errno::{self, ENOSYS};
use glebe_os::internal::sys::memory::direct;
use glebe_os::internal::sys::memory::direct_files::{
    self, SYS_fallocate, AT_FDCWD, MFD_HUGETLB, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY,
};
use glebe_os::internal::sys::processes::symbols::behind;

use crate::names::number;
use crate::next::{FCNTL, SYSCALL};
use crate::{files, lengths, mounts, seals, shown};

/// memfd_create(2).
///
/// # Safety
/// See memfd_create(2).
#[no_mangle]
pub unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the caller keeps the contract.
    let fd = number(unsafe { direct_files::memfd_create(name.expose_provenance(), flags) });
    if fd >= 0 && flags & MFD_HUGETLB != 0 {
        files::opened(fd);
    }
    fd
}

/// Returns a file that stands for another one.
///
/// # Safety
/// The path ends with a zero byte.
unsafe fn shown(path: *const c_char) -> Option<c_int> {
    // SAFETY: the caller keeps the contract.
    let path = unsafe { CStr::from_ptr(path) };
    shown::pages(path.to_bytes()).map(IntoRawFd::into_raw_fd)
}

unsafe fn opened(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller keeps the contract.
    let fd = number(unsafe { direct_files::openat(at, path.expose_provenance(), flags, mode) });
    if fd < 0 {
        return fd;
    }
    // SAFETY: the kernel has read the path, and the descriptor is new.
    unsafe {
        if let Some(other) = shown(path) {
            let _ = direct::close(fd);
            return other;
        }
    }
    mounts::opened(fd, flags);
    fd
}

macro_rules! opens {
    ($($manual:literal $name:ident($($at:ident)?) $mode:ident;)*) => {$(
        #[doc = $manual]
        ///
        /// # Safety
        #[doc = concat!("See ", $manual)]
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($at: c_int,)?
            path: *const c_char,
            flags: c_int,
            $mode: c_uint,
        ) -> c_int {
            #[allow(unused_variables)]
            let at = AT_FDCWD;
            $(let at = $at;)?
            // SAFETY: the caller keeps the contract.
            unsafe { opened(at, path, flags, $mode) }
        }
    )*};
}

opens! {
    "open(2)." open() mode;
    "open(2)." open64() mode;
    "openat(2)." openat(at) mode;
    "openat(2)." openat64(at) mode;
}

/// creat(2).
///
/// # Safety
/// See creat(2).
#[no_mangle]
pub unsafe extern "C" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode) }
}

/// creat(2).
///
/// # Safety
/// See creat(2).
#[no_mangle]
pub unsafe extern "C" fn creat64(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { creat(path, mode) }
}

/// Has the C library make a file with a new name.
unsafe fn made(function: &CStr, template: *mut c_char, flags: c_int) -> c_int {
    let found = behind(function, &[]);
    if found.is_null() {
        errno::set(ENOSYS);
        return -1;
    }
    // SAFETY: the C library's functions have these types.
    let fd = unsafe {
        match function == c"mkstemp" {
            true => {
                let call: unsafe extern "C" fn(*mut c_char) -> c_int = std::mem::transmute(found);
                call(template)
            }
            false => {
                let call: unsafe extern "C" fn(*mut c_char, c_int) -> c_int =
                    std::mem::transmute(found);
                call(template, flags)
            }
        }
    };
    if fd >= 0 {
        mounts::opened(fd, O_RDWR);
    }
    fd
}

/// mkstemp(3).
///
/// # Safety
/// See mkstemp(3).
#[no_mangle]
pub unsafe extern "C" fn mkstemp(template: *mut c_char) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { made(c"mkstemp", template, 0) }
}

/// mkstemp(3).
///
/// # Safety
/// See mkstemp(3).
#[no_mangle]
pub unsafe extern "C" fn mkstemp64(template: *mut c_char) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { made(c"mkstemp", template, 0) }
}

/// mkostemp(3).
///
/// # Safety
/// See mkostemp(3).
#[no_mangle]
pub unsafe extern "C" fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { made(c"mkostemp", template, flags) }
}

/// mkostemp(3).
///
/// # Safety
/// See mkostemp(3).
#[no_mangle]
pub unsafe extern "C" fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { made(c"mkostemp", template, flags) }
}

unsafe fn stream(function: &CStr, path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: the caller keeps the contract, and the C library's functions have these types.
    unsafe {
        let found = behind(function, &[]);
        if found.is_null() {
            errno::set(ENOSYS);
            return std::ptr::null_mut();
        }
        let call: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void =
            std::mem::transmute(found);
        let stream = call(path, mode);
        // A path that could be opened can be read.
        match if stream.is_null() { None } else { shown(path) } {
            Some(fd) => instead(stream, fd, mode),
            None => stream,
        }
    }
}

/// Opens a stream on a descriptor, and closes another stream.
///
/// # Safety
/// Both are the caller's.
unsafe fn instead(stream: *mut c_void, fd: c_int, mode: *const c_char) -> *mut c_void {
    let [open, close] = [c"fdopen", c"fclose"].map(|name| behind(name, &[]));
    if open.is_null() || close.is_null() {
        return stream;
    }
    // SAFETY: the C library's functions have these types.
    unsafe {
        let open: unsafe extern "C" fn(c_int, *const c_char) -> *mut c_void =
            std::mem::transmute(open);
        let close: unsafe extern "C" fn(*mut c_void) -> c_int = std::mem::transmute(close);
        close(stream);
        open(fd, mode)
    }
}

/// fopen(3).
///
/// # Safety
/// See fopen(3).
#[no_mangle]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: the caller keeps the contract.
    unsafe { stream(c"fopen", path, mode) }
}

/// fopen(3).
///
/// # Safety
/// See fopen(3).
#[no_mangle]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: the caller keeps the contract.
    unsafe { stream(c"fopen64", path, mode) }
}

/// ftruncate(2).
#[no_mangle]
pub extern "C" fn ftruncate(fd: c_int, len: i64) -> c_int {
    number(lengths::ftruncate(fd, len))
}

/// ftruncate(2).
#[no_mangle]
pub extern "C" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    number(lengths::ftruncate(fd, len))
}

/// fallocate(2).
#[no_mangle]
pub extern "C" fn fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
    number(lengths::fallocate(fd, mode, offset, len))
}

/// fallocate(2).
#[no_mangle]
pub extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
    number(lengths::fallocate(fd, mode, offset, len))
}

/// posix_fallocate(3). Returns the error number.
#[no_mangle]
pub extern "C" fn posix_fallocate(fd: c_int, offset: i64, len: i64) -> c_int {
    let answer = if files::is_any() { lengths::filled(fd, 0, offset, len) } else { None };
    match answer {
        Some(answer) => answer.err().unwrap_or(0),
        None => {
            let found = behind(c"posix_fallocate", &[]);
            if found.is_null() {
                return ENOSYS;
            }
            // SAFETY: the C library's function has this type.
            unsafe {
                let call: extern "C" fn(c_int, i64, i64) -> c_int = std::mem::transmute(found);
                call(fd, offset, len)
            }
        }
    }
}

/// posix_fallocate(3). Returns the error number.
#[no_mangle]
pub extern "C" fn posix_fallocate64(fd: c_int, offset: i64, len: i64) -> c_int {
    posix_fallocate(fd, offset, len)
}

/// fcntl(2). Its last argument is there only with some commands, and is passed on unread.
///
/// # Safety
/// See fcntl(2).
#[no_mangle]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, word: usize) -> c_int {
    match seals::fcntl(fd, command, word) {
        Some(answer) => number(answer),
        // SAFETY: the caller keeps the contract.
        None => unsafe { FCNTL.call([fd as usize, command as usize, word, 0, 0, 0, 0]) as c_int },
    }
}

/// fcntl(2).
///
/// # Safety
/// See fcntl(2).
#[no_mangle]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, word: usize) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { fcntl(fd, command, word) }
}

/// sendmsg(2).
///
/// # Safety
/// See sendmsg(2).
#[no_mangle]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const c_void, flags: c_int) -> isize {
    let message = message.expose_provenance();
    // SAFETY: the caller keeps the contract.
    unsafe {
        if files::is_any_leased() {
            direct_files::each_sent(message, files::sent);
        }
        number(direct_files::sendmsg(socket, message, flags)) as isize
    }
}

/// syscall(2). Java's ZGC fills and empties files by it. The library answers such calls for leased
/// files, because a hole would take the page from the daemon.
///
/// # Safety
/// See syscall(2). Arguments that the caller left out are passed on unread.
#[no_mangle]
pub unsafe extern "C" fn syscall(
    which: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if which == SYS_fallocate && files::is_any() {
        if let Some(answer) = lengths::filled(a as c_int, b as c_int, c as i64, d as i64) {
            return c_long::from(number(answer));
        }
    }
    // SAFETY: the caller keeps the contract.
    unsafe { SYSCALL.call([which as usize, a, b, c, d, e, f]) }
}
