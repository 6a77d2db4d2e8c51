//! The boundary: panics, the thread's last error, names of codes, and what comes and goes through
//! pointers.
//!
//! Every exported function runs inside [`call`]. A panic ends there; the answer is a number. What
//! failed last is kept by each thread and made into text only when it is asked for.
//!
//! # Safety
//! [`In`] and [`Out`] come from C alone, as arguments of an exported function: what the header
//! asks of such an argument is what their methods rely on. Null is one, or there is room for what
//! is said to be there, until the function returns. No alignment is asked of C.
#![allow(unsafe_code)]

mod probed;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use glebe::stats::Line;
use glebe::sys::errno;

use crate::abi::*;
use crate::failure::Failure;

pub(crate) use probed::Probed;

/// The largest size of a structure that is believed: more is a member that was never set.
const SIZE_MAX: u64 = 1 << 12;
const WORD: u64 = size_of::<u64>() as u64;

#[derive(Default)]
struct Last {
    failure: Option<Failure>,
    text: CString,
}

thread_local!(static LAST: RefCell<Last> = RefCell::default());

/// Runs `body`; its number, or the code of what it refused.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // What a panic may have left half done is behind locks or is dropped.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => fail(failure),
        Err(panic) => fail(caught(&*panic)),
    }
}

/// Runs `body`, which answers as mmap(2) does: an address, or `MAP_FAILED` and the thread's error
/// number.
pub(crate) fn call_for_address(body: impl FnOnce() -> Result<*mut c_void, Failure>) -> *mut c_void {
    call_or_errno(std::ptr::without_provenance_mut(usize::MAX), body)
}

/// Runs `body`; its answer, or `failed` and the thread's error number.
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
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|last| last.borrow_mut().failure = Some(failure));
    code
}

fn caught(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = format!("a fault inside glebe was caught: {}", text.unwrap_or("unknown"));
    Failure::new(GLEBE_ERROR_PANIC, text)
}

/// The text of the thread's last failure: good until its next call of this function.
pub(crate) fn last_error() -> *const c_char {
    let text = || {
        LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            let text = last.failure.as_ref().map_or_else(String::new, ToString::to_string);
            // An end mark inside a text would come from a path; what is before it is enough.
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
    std::panic::catch_unwind(|| glebe::sys::page_size().bytes().get()).unwrap_or(0)
}

#[no_mangle]
pub extern "C" fn glebe_last_error() -> *const c_char {
    last_error()
}

#[no_mangle]
pub extern "C" fn glebe_error_name(code: c_int) -> *const c_char {
    name_of(code).unwrap_or(c"unknown").as_ptr()
}

/// A pointer of C's to what is only read: other calls may read it meanwhile, and it may be where
/// nobody can write.
#[repr(transparent)]
pub struct In<T>(*const T);

/// A pointer of C's to what is filled, which nobody else uses meanwhile.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Where no answer is wanted.
    pub(crate) fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The number that C passed, where it is no pointer.
    pub(crate) fn addr(&self) -> usize {
        self.0.expose_provenance()
    }

    /// Refuses null, before anything is done.
    pub(crate) fn checked(self, name: &str) -> Result<Self, Failure> {
        if self.0.is_null() {
            return Err(Failure::null(name));
        }
        Ok(self)
    }

    /// Writes the answer, unless C wants none.
    pub(crate) fn set(self, value: T) -> c_int {
        if !self.0.is_null() {
            // SAFETY: as the head says.
            unsafe { self.0.write_unaligned(value) };
        }
        GLEBE_OK
    }
}

/// Refuses a null pointer to several, and more of them than memory can have. With none of them the
/// pointer is not looked at.
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
    /// So many bytes, which may be null if there are none.
    pub(crate) fn bytes(&self, len_bytes: usize, name: &str) -> Result<&[u8], Failure> {
        check_room(self.0.cast::<u8>(), len_bytes, name)?;
        if len_bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: as the head says. Bytes that C has not set are bytes to Rust: they come from a
        // call that the compiler cannot see into.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len_bytes) })
    }
}

impl Out<c_void> {
    /// So many bytes, which may be null if there are none.
    pub(crate) fn bytes(&mut self, len_bytes: usize, name: &str) -> Result<&mut [u8], Failure> {
        check_room(self.0.cast::<u8>(), len_bytes, name)?;
        if len_bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `In::bytes`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len_bytes) })
    }
}

impl<T: Copy> In<T> {
    /// So many of an array.
    pub(crate) fn all(&self, count: usize, name: &str) -> Result<Vec<T>, Failure> {
        check_room(self.0, count, name)?;
        // SAFETY: below `count`, as the head says.
        Ok((0..count).map(|nth| unsafe { self.0.add(nth).read_unaligned() }).collect())
    }
}

impl In<c_char> {
    /// A text that ends with a zero byte; `None` for null.
    pub(crate) fn text(&self) -> Option<&CStr> {
        // SAFETY: as the head says.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }

    /// A text that a structure points to.
    pub(crate) fn member(at: Chars) -> Self {
        Self(at.map_or(std::ptr::null(), |at| at.as_ptr().cast_const()))
    }

    /// A path; `None` for null.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.text().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())))
    }
}

/// An array of the caller's for the first of several answers, and where their number is told.
pub(crate) struct Array<T> {
    to: Out<T>,
    capacity: usize,
    count: Out<usize>,
}

impl<T> Array<T> {
    /// Looks at both pointers before anything is done.
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

    /// Writes as many of `all` as there is room for, and how many they are; gives that too.
    pub(crate) fn set(self, all: impl Iterator<Item = T>) -> usize {
        let mut there = 0;
        for one in all {
            if there < self.capacity {
                // SAFETY: below `capacity`, as the head says.
                unsafe { self.to.0.add(there).write_unaligned(one) };
            }
            there += 1;
        }
        self.count.set(there);
        there
    }
}

/// Room of the caller's for a text, and where its need is told.
pub(crate) struct Text {
    to: Out<c_char>,
    room: usize,
    needed: Out<usize>,
}

impl Text {
    /// Looks at both pointers before anything is done.
    pub(crate) fn new(
        to: Out<c_char>,
        room: usize,
        needed_bytes: Out<usize>,
    ) -> Result<Self, Failure> {
        let needed = needed_bytes.checked("needed_bytes")?;
        check_room(to.0, room.min(1), "text")?;
        Ok(Self { to, room, needed })
    }

    /// Writes `text` up to its first zero byte, then one, and the room for both: that alone where
    /// there is no place for a text.
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
        // SAFETY: as the head says; not null, since there is room.
        unsafe {
            self.to.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.to.0.add(bytes.len()).write(0);
        }
        Ok(self.needed.set(needed))
    }
}

/// Refuses a size that a structure cannot have: it begins with its size and one member.
fn check_size<T: Words>(given: u64) -> Result<(), Failure> {
    if !(2 * WORD..=SIZE_MAX).contains(&given) || given % WORD != 0 {
        let (name, least) = (T::NAME, 2 * WORD);
        let text = format!("{name} of {given} bytes: needs a multiple of 8, {least} to {SIZE_MAX}");
        return Err(Failure::new(GLEBE_ERROR_BAD_SIZE, text));
    }
    Ok(())
}

impl<T: Words> In<T> {
    /// What the caller says in a structure: members that it does not know are zero, and those that
    /// this version does not know must be. Zeros for null.
    pub(crate) fn read(&self) -> Result<T, Failure> {
        let mut known = T::default();
        if self.0.is_null() {
            return Ok(known);
        }
        let words = self.0.cast::<u64>();
        // SAFETY: as the head says, there are as many bytes as the first word says; `T` consists
        // of words, of which no more than it has are written.
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

/// A structure of the caller's that is to be filled.
pub(crate) struct Fill<T> {
    to: *mut T,
    given: u64,
}

impl<T: Words> Out<T> {
    /// Looks at a structure before anything is done.
    pub(crate) fn sized(self) -> Result<Fill<T>, Failure> {
        let to = self.checked(T::NAME)?.0;
        // SAFETY: as the head says, the first word is there.
        let given = unsafe { to.cast::<u64>().read_unaligned() };
        check_size::<T>(given)?;
        Ok(Fill { to, given })
    }

    /// As [`Out::sized`], unless C wants no answer.
    pub(crate) fn sized_if_any(self) -> Result<Option<Fill<T>>, Failure> {
        (!self.0.is_null()).then(|| self.sized()).transpose()
    }
}

impl<T: Words> Fill<T> {
    /// Fills as much as both sides know, zeroes the rest, and says in the first word how many
    /// bytes have a meaning.
    pub(crate) fn set(self, value: &T) -> c_int {
        let both = self.given.min(size_of::<T>() as u64);
        let to = self.to.cast::<u8>();
        // SAFETY: as the head says, `given` bytes are at `to`; `T` has at least `both`.
        unsafe {
            to.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), both as usize);
            to.add(both as usize).write_bytes(0, (self.given - both) as usize);
            to.cast::<u64>().write_unaligned(both);
        }
        GLEBE_OK
    }

    /// Fills the members of statistics by their names; others are 0.
    pub(crate) fn set_lines(self, lines: &[Line]) -> c_int {
        let mut value = T::default();
        let words = std::ptr::from_mut(&mut value).cast::<u64>();
        for (nth, member) in T::MEMBERS.iter().enumerate() {
            if let Some(line) = lines.iter().find(|line| line.name == *member) {
                // SAFETY: a member behind `size`, which is a word.
                unsafe { words.add(1 + nth).write(line.value) };
            }
        }
        self.set(&value)
    }
}

#[cfg(test)]
mod tests;
