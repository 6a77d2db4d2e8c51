//! [`answer`] and [`call`] make a system call and read its error number. Tests inject errors at
//! [`point`].

use std::io;

use super::fault::point;
use crate::error::OsError;

#[inline]
pub fn answer<T: PartialEq + From<i8>>(
    name: &'static str,
    make: impl FnOnce() -> T,
) -> io::Result<T> {
    point(name)?;
    match make() {
        refused if refused == T::from(-1) => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// Makes a call as [`answer`] does, and drops the result.
#[inline]
pub fn call<T: PartialEq + From<i8>>(
    name: &'static str,
    subject: impl FnOnce() -> String,
    make: impl FnOnce() -> T,
) -> Result<(), OsError> {
    answer(name, make).map(drop).map_err(|source| OsError::new(name, subject(), source))
}
