//! The boundary: panics, the thread's last error, and what comes and goes through pointers.
//!
//! Every exported function runs inside [`call`]. A panic ends there; the answer is a number. What
//! failed last is kept by each thread and made into text only when it is asked for.
//!
//! # Safety
//! The functions that take a pointer ask of their caller what the header asks of C: null, or
//! room for what is said to be there.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

use glebe::sys::errno;

use crate::abi::GLEBE_OK;
use crate::failure::Failure;

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
        Err(panic) => fail(Failure::Panic(text_of(&*panic))),
    }
}

/// Runs `body`, which answers as mmap(2) does: an address, or `MAP_FAILED` and the thread's error
/// number.
pub(crate) fn call_for_address(body: impl FnOnce() -> Result<*mut c_void, Failure>) -> *mut c_void {
    let answer = catch_unwind(AssertUnwindSafe(body));
    let failure = match answer {
        Ok(Ok(address)) => return address,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::Panic(text_of(&*panic)),
    };
    let number = failure.errno();
    fail(failure);
    errno::set(number);
    std::ptr::without_provenance_mut(usize::MAX)
}

#[cold]
fn fail(failure: Failure) -> c_int {
    let code = failure.code();
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|last| last.borrow_mut().failure = Some(failure));
    code
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into())
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

/// An argument through which an answer goes out.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Looks at it before anything is done.
    ///
    /// # Safety
    /// `pointer` is null or may be written until the answer is dropped.
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::Null(name));
        }
        Ok(Self(pointer))
    }

    pub(crate) fn set(self, value: T) -> c_int {
        // SAFETY: not null, and `new`'s caller vouches for the rest. No alignment is asked of C.
        unsafe { self.0.write_unaligned(value) };
        GLEBE_OK
    }
}

/// Refuses a null pointer to bytes, and more of them than memory can have. With none of them the
/// pointer is not looked at.
fn check_bytes(is_null: bool, len_bytes: usize, name: &'static str) -> Result<(), Failure> {
    if is_null && len_bytes > 0 {
        return Err(Failure::Null(name));
    }
    if isize::try_from(len_bytes).is_err() {
        return Err(Failure::TooManyBytes { name, given: len_bytes });
    }
    Ok(())
}

/// Bytes of the caller's to read, which may be null if there are none. Other calls may read them
/// meanwhile, and they may be where nobody can write.
///
/// # Safety
/// `bytes` is null or has `len_bytes` that nobody writes until the answer is dropped.
pub(crate) unsafe fn bytes_from<'a>(
    bytes: *const c_void,
    len_bytes: usize,
    name: &'static str,
) -> Result<&'a [u8], Failure> {
    check_bytes(bytes.is_null(), len_bytes, name)?;
    if len_bytes == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's duty. Bytes that C has not set are bytes to Rust: they come from a call
    // that the compiler cannot see into.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len_bytes) })
}

/// Bytes of the caller's to fill, which may be null if there are none.
///
/// # Safety
/// `bytes` is null or has `len_bytes` that nobody else uses until the answer is dropped.
pub(crate) unsafe fn bytes_at<'a>(
    bytes: *mut c_void,
    len_bytes: usize,
    name: &'static str,
) -> Result<&'a mut [u8], Failure> {
    check_bytes(bytes.is_null(), len_bytes, name)?;
    if len_bytes == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes_from`.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len_bytes) })
}

/// An array of the caller's for the first of several answers, and where their number is told.
pub(crate) struct Array<T> {
    to: *mut T,
    capacity: usize,
    count: Out<usize>,
}

impl<T> Array<T> {
    /// Looks at both pointers before anything is done.
    ///
    /// # Safety
    /// `to` is null or has room for `capacity`, and both may be written until the answer is
    /// dropped.
    pub(crate) unsafe fn new(
        to: *mut T,
        capacity: usize,
        count: *mut usize,
        name: &'static str,
    ) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        let count = unsafe { Out::new(count, "count")? };
        if to.is_null() && capacity > 0 {
            return Err(Failure::Null(name));
        }
        Ok(Self { to, capacity, count })
    }

    /// Writes as many of `all` as there is room for, and how many they are.
    pub(crate) fn set(self, all: impl Iterator<Item = T>) -> c_int {
        let mut there = 0;
        for one in all {
            if there < self.capacity {
                // SAFETY: below `capacity`, for which `new`'s caller vouches.
                unsafe { self.to.add(there).write_unaligned(one) };
            }
            there += 1;
        }
        self.count.set(there)
    }
}

/// Room of the caller's for a text, and where its need is told.
pub(crate) struct Text {
    to: *mut c_char,
    room: usize,
    needed: Out<usize>,
}

impl Text {
    /// Looks at both pointers before anything is done.
    ///
    /// # Safety
    /// `to` is null or has room for so many bytes, and both may be written until the answer is
    /// dropped.
    pub(crate) unsafe fn new(
        to: *mut c_char,
        room: usize,
        needed_bytes: *mut usize,
    ) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        let needed = unsafe { Out::new(needed_bytes, "needed_bytes")? };
        if to.is_null() && room > 0 {
            return Err(Failure::Null("text"));
        }
        Ok(Self { to, room, needed })
    }

    /// Writes `text` up to its first zero byte, then one, and the room for both.
    pub(crate) fn set(self, text: impl AsRef<[u8]>) -> Result<c_int, Failure> {
        let bytes = text.as_ref().split(|byte| *byte == 0).next().unwrap_or_default();
        let needed = bytes.len() + 1;
        if self.room < needed {
            self.needed.set(needed);
            return Err(Failure::ShortText { given: self.room, needed });
        }
        // SAFETY: `new`'s caller vouches for the room, which is not null since it is more than 0.
        unsafe {
            self.to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.to.add(bytes.len()).write(0);
        }
        Ok(self.needed.set(needed))
    }
}

/// A structure of the header: `repr(C)`, 64-bit words only, the first its size in bytes.
///
/// # Safety
/// The type is exactly that.
pub(crate) unsafe trait Sized64: Copy + Default {
    const NAME: &'static str;
    /// Bytes of the members that the oldest caller knows.
    const LEAST: u64;
}

fn check_size<T: Sized64>(given: u64) -> Result<(), Failure> {
    if !(T::LEAST..=SIZE_MAX).contains(&given) || given % WORD != 0 {
        return Err(Failure::BadSize { name: T::NAME, given, least: T::LEAST, most: SIZE_MAX });
    }
    Ok(())
}

/// What the caller says in a structure: members that it does not know are zero, and those that
/// this version does not know must be.
///
/// # Safety
/// `from` is null, or its first word is the number of bytes there.
pub(crate) unsafe fn read<T: Sized64>(from: *const T) -> Result<T, Failure> {
    if from.is_null() {
        return Err(Failure::Null(T::NAME));
    }
    let words = from.cast::<u64>();
    let mut known = T::default();
    // SAFETY: the caller vouches for as many bytes as the first word says, and `T` consists of
    // words, of which no more than it has are written.
    unsafe {
        let given = words.read_unaligned();
        check_size::<T>(given)?;
        let here = size_of::<T>() as u64;
        let to = std::ptr::from_mut(&mut known).cast::<u8>();
        to.copy_from_nonoverlapping(from.cast(), given.min(here) as usize);
        for word in (here / WORD)..(given / WORD) {
            if words.add(word as usize).read_unaligned() != 0 {
                return Err(Failure::Unknown { name: T::NAME, known: here });
            }
        }
    }
    Ok(known)
}

/// A structure of the caller's that is to be filled.
pub(crate) struct Fill<T> {
    to: *mut T,
    given: u64,
}

impl<T: Sized64> Fill<T> {
    /// Looks at it before anything is done.
    ///
    /// # Safety
    /// `to` is null, or its first word is the number of bytes there, which may be written until
    /// the answer is dropped.
    pub(crate) unsafe fn new(to: *mut T) -> Result<Self, Failure> {
        if to.is_null() {
            return Err(Failure::Null(T::NAME));
        }
        // SAFETY: the caller vouches for the first word.
        let given = unsafe { to.cast::<u64>().read_unaligned() };
        check_size::<T>(given)?;
        Ok(Self { to, given })
    }

    /// Fills as much as both sides know, zeroes the rest, and says in the first word how many
    /// bytes have a meaning.
    pub(crate) fn set(self, value: &T) -> c_int {
        let both = self.given.min(size_of::<T>() as u64);
        let to = self.to.cast::<u8>();
        // SAFETY: `new`'s caller vouches for `given` bytes at `to`; `T` has at least `both`.
        unsafe {
            to.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), both as usize);
            to.add(both as usize).write_bytes(0, (self.given - both) as usize);
            to.cast::<u64>().write_unaligned(both);
        }
        GLEBE_OK
    }
}

#[cfg(test)]
mod tests;
