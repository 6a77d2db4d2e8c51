//! One system call: its fault point before it, its error number behind it.

use std::io;

use super::fault::point;
use crate::error::OsError;

/// Makes a call that answers -1 where the kernel refuses, and what it answers else.
#[inline]
pub(crate) fn answer<T: PartialEq + From<i8>>(
    name: &'static str,
    make: impl FnOnce() -> T,
) -> io::Result<T> {
    point(name)?;
    match make() {
        refused if refused == T::from(-1) => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// As [`answer`], of a call on `subject` of whose answer nothing else matters.
#[inline]
pub(crate) fn call<T: PartialEq + From<i8>>(
    name: &'static str,
    subject: impl FnOnce() -> String,
    make: impl FnOnce() -> T,
) -> Result<(), OsError> {
    answer(name, make).map(drop).map_err(|source| OsError::new(name, subject(), source))
}
