//! [`fill`] gets random bytes from the kernel. Source: getrandom(2), Linux 3.17.
#![allow(unsafe_code)]

use std::io::ErrorKind;

use crate::error::OsError;
use crate::internal::sys::call::answer;

pub fn fill(bytes: &mut [u8]) -> Result<(), OsError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (at, len) = (rest.as_mut_ptr().cast(), rest.len());
        // SAFETY: the kernel writes only `rest`.
        match answer("getrandom", || unsafe { libc::getrandom(at, len, 0) }) {
            Ok(filled) => rest = &mut rest[filled as usize..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(OsError::new("getrandom", len.to_string(), error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_fillings_are_the_same() {
        let mut bytes = [[0; 32]; 2];
        bytes.iter_mut().for_each(|bytes| super::fill(bytes).unwrap());
        assert!(bytes[0] != bytes[1] && bytes.iter().all(|bytes| *bytes != [0; 32]));
    }
}
