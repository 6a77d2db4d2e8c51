//! Looks users up by name, and makes the process another user's.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::{io, ptr};

/// A user, as the system's user database has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: CString,
    /// User id.
    pub uid: u32,
    /// Id of the user's own group.
    pub gid: u32,
}

impl User {
    /// Returns the user with this name, or `None` if there is no such user.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        const ROOM: usize = 64 << 10;
        let name = CString::new(name)?;
        let mut room = vec![0; ROOM];
        // SAFETY: all-zero bytes are a `passwd`, whose pointers are null.
        let mut found: libc::passwd = unsafe { std::mem::zeroed() };
        let mut result = ptr::null_mut();
        // SAFETY: `room` has `ROOM` bytes, and all pointers outlive the call. `found` points into
        // `room`; no pointer of it is used.
        let errno = unsafe {
            libc::getpwnam_r(name.as_ptr(), &mut found, room.as_mut_ptr(), ROOM, &mut result)
        };
        match errno {
            0 if result.is_null() => Ok(None),
            0 => Ok(Some(Self { name, uid: found.pw_uid, gid: found.pw_gid })),
            // Databases answer some of these for a missing user.
            libc::ENOENT | libc::ESRCH => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Makes all threads of the process this user's, with the user's groups, for good. If it fails
    /// after the first step, the process has lost groups and must end.
    pub fn become_for_good(&self) -> io::Result<()> {
        // SAFETY: the name is a C string. The C library changes all threads.
        let groups = unsafe { libc::initgroups(self.name.as_ptr(), self.gid) };
        checked(groups)?;
        // SAFETY: the calls take numbers, and change all threads: real, effective and saved ids.
        checked(unsafe { libc::setresgid(self.gid, self.gid, self.gid) })?;
        // SAFETY: as above.
        checked(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })
    }
}

fn checked(status: i32) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_else_of_a_strange_name() {
        let root = User::named("root").expect("the database").expect("root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(User::named("no such user").expect("the database"), None);
        assert!(User::named("ro\0ot").is_err());
    }
}
