//! The boundary to C: catches panics, keeps each thread's last error, and checks C's pointers.
//!
//! Most exported functions run their bodies in [`call`] or a variant, which turns a panic into an
//! error. Each thread keeps its last failure and formats the text only on request.
//!
//! # Safety
//! Each [`In`] and [`Out`] that is not null came from C, as an argument or a member. The header
//! promises the required bytes at such a pointer until the function returns. C's pointers need no
//! alignment.
#![allow(unsafe_code)]

mod probed;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use glebe::internal::sys::errno;
use glebe::stats::Line;

use crate::abi::*;
use crate::failure::Failure;

pub(crate) use probed::Probed;

/// The largest plausible `size` in bytes. A larger value means that the caller did not set it.
const SIZE_MAX: u64 = 1 << 12;
const WORD: u64 = size_of::<u64>() as u64;

#[derive(Default)]
struct Last {
    failure: Option<Failure>,
    text: CString,
}

thread_local!(static LAST: RefCell<Last> = RefCell::default());

/// Returns the answer of `body`, or the code of its error or panic.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // Unwinding is safe: a panic drops the call's own values, and locks guard shared values.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => fail(failure),
        Err(panic) => fail(caught(&*panic)),
    }
}

/// Returns the address, or `MAP_FAILED` with errno set, as mmap(2) does.
pub(crate) fn call_for_address(body: impl FnOnce() -> Result<*mut c_void, Failure>) -> *mut c_void {
    call_or_errno(std::ptr::without_provenance_mut(usize::MAX), body)
}

/// Returns the answer of `body`, or `failed` with errno set.
pub(crate) fn call_or_errno<T>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(panic) => caught(&*panic),
    };
    let number = failure.errno();
    fail(failure);
    errno::set(number);
    failed
}

#[cold]
fn fail(failure: Failure) -> c_int {
    let code = failure.code();
    // A thread that is ending may have no `LAST` any more.
    let _ = LAST.try_with(|last| last.borrow_mut().failure = Some(failure));
    code
}

fn caught(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = format!("a fault inside glebe was caught: {}", text.unwrap_or("unknown"));
    Failure::new(GLEBE_ERROR_PANIC, text)
}

/// Returns the text of the thread's last failure, valid until the thread's next call of this
/// function.
pub(crate) fn last_error() -> *const c_char {
    let text = || {
        LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            let text = last.failure.as_ref().map_or_else(String::new, ToString::to_string);
            // A path may contain a zero byte, which ends the text.
            last.text = CString::new(text).unwrap_or_else(|cut| {
                let end = cut.nul_position();
                CString::new(&cut.into_vec()[..end]).unwrap_or_default()
            });
            last.text.as_ptr()
        })
    };
    catch_unwind(text).ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

#[no_mangle]
pub extern "C" fn glebe_version() -> *const c_char {
    let text = concat!(env!("CARGO_PKG_VERSION"), "\0");
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or_default().as_ptr()
}

#[no_mangle]
pub extern "C" fn glebe_page_bytes() -> u64 {
    std::panic::catch_unwind(|| glebe::page_size().bytes().get()).unwrap_or(0)
}

#[no_mangle]
pub extern "C" fn glebe_last_error() -> *const c_char {
    last_error()
}

#[no_mangle]
pub extern "C" fn glebe_error_name(code: c_int) -> *const c_char {
    name_of(code).unwrap_or(c"unknown").as_ptr()
}

/// A pointer from C to memory that the call only reads. The memory may be read-only, and other
/// calls may read it meanwhile.
#[repr(transparent)]
pub struct In<T>(*const T);

/// A pointer from C to memory that only this call reads or writes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Returns the address, for a pointer that may be invalid.
    pub(crate) fn addr(&self) -> usize {
        self.0.expose_provenance()
    }

    /// Refuses null. Callers check before they change anything.
    pub(crate) fn checked(self, name: &str) -> Result<Self, Failure> {
        if self.0.is_null() {
            return Err(Failure::null(name));
        }
        Ok(self)
    }

    pub(crate) fn set(self, value: T) -> c_int {
        if !self.0.is_null() {
            // SAFETY: the header promises room for a `T` at a pointer that is not null.
            unsafe { self.0.write_unaligned(value) };
        }
        GLEBE_OK
    }
}

/// Refuses null if `count` is not 0, and a `count` of more elements than memory can hold.
fn check_room<T>(at: *const T, count: usize, name: &str) -> Result<(), Failure> {
    if at.is_null() && count > 0 {
        return Err(Failure::null(name));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        let text = format!("{count} at {name}, of {} bytes each: too many", size_of::<T>().max(1));
        return Err(Failure::new(GLEBE_ERROR_BAD_ARGUMENT, text));
    }
    Ok(())
}

impl In<c_void> {
    pub(crate) fn bytes(&self, len_bytes: usize, name: &str) -> Result<&[u8], Failure> {
        check_room(self.0.cast::<u8>(), len_bytes, name)?;
        if len_bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: the header promises `len_bytes` bytes at a pointer that is not null. Bytes that C
        // never set count as initialized, because the compiler cannot see into C's code.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len_bytes) })
    }
}

impl Out<c_void> {
    pub(crate) fn bytes(&mut self, len_bytes: usize, name: &str) -> Result<&mut [u8], Failure> {
        check_room(self.0.cast::<u8>(), len_bytes, name)?;
        if len_bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the header promises `len_bytes` bytes that nobody else uses, and the pointer is
        // not null.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len_bytes) })
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn all(&self, count: usize, name: &str) -> Result<Vec<T>, Failure> {
        check_room(self.0, count, name)?;
        // SAFETY: the header promises `count` elements, and `nth` is less.
        Ok((0..count).map(|nth| unsafe { self.0.add(nth).read_unaligned() }).collect())
    }
}

impl In<c_char> {
    pub(crate) fn text(&self) -> Option<&CStr> {
        // SAFETY: the header promises a zero-terminated text at a pointer that is not null.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }

    pub(crate) fn member(at: Chars) -> Self {
        Self(at.map_or(std::ptr::null(), |at| at.as_ptr().cast_const()))
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.text().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())))
    }
}

/// The caller's array for at most `capacity` answers, and the place for the number of all answers.
pub(crate) struct Array<T> {
    to: Out<T>,
    capacity: usize,
    count: Out<usize>,
}

impl<T> Array<T> {
    pub(crate) fn new(
        to: Out<T>,
        capacity: usize,
        count: Out<usize>,
        name: &str,
    ) -> Result<Self, Failure> {
        let count = count.checked("count")?;
        check_room(to.0, capacity.min(1), name)?;
        Ok(Self { to, capacity, count })
    }

    /// Writes the first `capacity` items, and the number of all items. Returns this number.
    pub(crate) fn set(self, all: impl Iterator<Item = T>) -> usize {
        let mut there = 0;
        for one in all {
            if there < self.capacity {
                // SAFETY: the header promises room for `capacity` items, and `there` is less.
                unsafe { self.to.0.add(there).write_unaligned(one) };
            }
            there += 1;
        }
        self.count.set(there);
        there
    }
}

/// The caller's buffer for a text, and the place for the number of bytes that the text needs.
pub(crate) struct Text {
    to: Out<c_char>,
    room: usize,
    needed: Out<usize>,
}

impl Text {
    pub(crate) fn new(
        to: Out<c_char>,
        room: usize,
        needed_bytes: Out<usize>,
    ) -> Result<Self, Failure> {
        let needed = needed_bytes.checked("needed_bytes")?;
        check_room(to.0, room.min(1), "text")?;
        Ok(Self { to, room, needed })
    }

    /// Writes `text` up to its first zero byte, then a zero byte, and the number of bytes needed
    /// for both. With a null buffer, writes only the number. If the buffer is too small, writes the
    /// number and fails with `GLEBE_ERROR_BUFFER_TOO_SMALL`.
    pub(crate) fn set(self, text: impl AsRef<[u8]>) -> Result<c_int, Failure> {
        let bytes = text.as_ref().split(|byte| *byte == 0).next().unwrap_or_default();
        let needed = bytes.len() + 1;
        if self.room < needed {
            self.needed.set(needed);
            if self.to.0.is_null() {
                return Ok(GLEBE_OK);
            }
            let text = format!("room for {} bytes of text; {needed} are needed", self.room);
            return Err(Failure::new(GLEBE_ERROR_BUFFER_TOO_SMALL, text));
        }
        // SAFETY: the header promises `room` bytes at a pointer that is not null, and `needed` is
        // not more.
        unsafe {
            self.to.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.to.0.add(bytes.len()).write(0);
        }
        Ok(self.needed.set(needed))
    }
}

/// Refuses an implausible size. The smallest structure has one member beside the size.
fn check_size<T: Words>(given: u64) -> Result<(), Failure> {
    if !(2 * WORD..=SIZE_MAX).contains(&given) || given % WORD != 0 {
        let (name, least) = (T::NAME, 2 * WORD);
        let text = format!("{name} of {given} bytes: needs a multiple of 8, {least} to {SIZE_MAX}");
        return Err(Failure::new(GLEBE_ERROR_BAD_SIZE, text));
    }
    Ok(())
}

impl<T: Words> In<T> {
    /// Reads a structure. Members missing in an older caller's structure are zero; members unknown
    /// to this version must be zero. Null reads as zeros.
    pub(crate) fn read(&self) -> Result<T, Failure> {
        let mut known = T::default();
        if self.0.is_null() {
            return Ok(known);
        }
        let words = self.0.cast::<u64>();
        // SAFETY: the header promises as many bytes as the first word says. `T` consists of words,
        // and at most its size is written.
        unsafe {
            let given = words.read_unaligned();
            check_size::<T>(given)?;
            let here = size_of::<T>() as u64;
            let to = std::ptr::from_mut(&mut known).cast::<u8>();
            to.copy_from_nonoverlapping(self.0.cast(), given.min(here) as usize);
            for word in (here / WORD)..(given / WORD) {
                if words.add(word as usize).read_unaligned() != 0 {
                    let text = format!("{}: a member beyond the {here} bytes known here", T::NAME);
                    return Err(Failure::new(GLEBE_ERROR_BAD_ARGUMENT, text));
                }
            }
        }
        Ok(known)
    }
}

pub(crate) struct Fill<T> {
    to: *mut T,
    given: u64,
}

impl<T: Words> Out<T> {
    /// Checks the pointer and the size of a structure that the call will fill.
    pub(crate) fn sized(self) -> Result<Fill<T>, Failure> {
        let to = self.checked(T::NAME)?.0;
        // SAFETY: the pointer is not null, and the header promises the first word.
        let given = unsafe { to.cast::<u64>().read_unaligned() };
        check_size::<T>(given)?;
        Ok(Fill { to, given })
    }

    pub(crate) fn sized_if_any(self) -> Result<Option<Fill<T>>, Failure> {
        (!self.0.is_null()).then(|| self.sized()).transpose()
    }
}

impl<T: Words> Fill<T> {
    /// Fills the members that caller and library know, zeroes the caller's other members, and sets
    /// the first word to the number of bytes filled.
    pub(crate) fn set(self, value: &T) -> c_int {
        let both = self.given.min(size_of::<T>() as u64);
        let to = self.to.cast::<u8>();
        // SAFETY: the header promises `given` bytes at `to`; `T` has at least `both`.
        unsafe {
            to.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), both as usize);
            to.add(both as usize).write_bytes(0, (self.given - both) as usize);
            to.cast::<u64>().write_unaligned(both);
        }
        GLEBE_OK
    }

    /// Fills each member with the statistic of the same name; other members become 0.
    pub(crate) fn set_lines(self, lines: &[Line]) -> c_int {
        let mut value = T::default();
        let words = std::ptr::from_mut(&mut value).cast::<u64>();
        for (nth, member) in T::MEMBERS.iter().enumerate() {
            if let Some(line) = lines.iter().find(|line| line.name == *member) {
                // SAFETY: `nth` is below the number of members, and each member is a word.
                unsafe { words.add(1 + nth).write(line.value) };
            }
        }
        self.set(&value)
    }
}

#[cfg(test)]
mod tests;
