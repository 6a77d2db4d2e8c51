//! Makes the server another user's (`-u`), after it has its memory.
//!
//! The memory stays. Huge pages that the server added to a pool go back to the kernel when the
//! process ends, whoever's it is. Files in root's folders stay at the end: the socket of the
//! statistics, the control socket, the file of the process id.

use std::error::Error;
use std::os::unix::fs::lchown;
use std::path::Path;

use glebe::internal::sys::processes::process::effective_user;
use glebe::internal::sys::processes::user::User;

use crate::usage;

/// Returns the user to become, or `None` if the process is that user's.
pub fn chosen(name: Option<&str>, leases: bool) -> Result<Option<User>, Box<dyn Error>> {
    let (Some(name), own) = (name, effective_user()) else { return Ok(None) };
    if name.parse() == Ok(own) {
        return Ok(None);
    }
    let user = User::named(name).map_err(|e| format!("-u {name}: {e}"))?;
    let Some(user) = user else { return usage(format!("-u {name}: there is no such user")) };
    if user.uid == own {
        return Ok(None);
    }
    if own != 0 {
        return usage(format!("-u {name}: only root can become another user"));
    }
    if leases {
        // Leases add and return memory at any time, which only the user of the start can do.
        return usage(format!("-u {name}: with --leases, use systemd's User= or `runuser`"));
    }
    Ok(Some(user))
}

/// Makes the process the user's, and the control socket, too.
pub fn become_user(user: &User, control: Option<&Path>) -> Result<(), Box<dyn Error>> {
    if let Some(path) = control {
        // The folder may be the user's, who could have put a link there.
        let done = lchown(path, Some(user.uid), Some(user.gid));
        done.map_err(|e| format!("chown({}): {e}", path.display()))?;
    }
    user.become_for_good().map_err(|e| format!("-u: cannot become user {}: {e}", user.uid).into())
}
