//! [`Listening`] is the daemon's socket. If the daemon bound it, it also owns the path.
//!
//! A lock file beside the socket belongs to one daemon at a time, so a socket that refuses
//! connections is nobody's. The file stays, because a removed one could be locked twice.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::internal::sys::files::lock_file::{LockFile, Locked};
use glebe_lease::socket::{bound, Packets};
use rustix::fs::Gid;

use crate::settings::Settings;
use crate::Failure;

const BACKLOG: i32 = 128;

#[derive(Debug)]
pub(crate) struct Listening {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of the file that this process bound, and its lock.
    own: Option<((u64, u64), Locked)>,
}

impl Listening {
    /// Binds the path of the settings.
    pub(crate) fn bind(settings: &Settings) -> Result<Self, Failure> {
        let path = &settings.path;
        let failed = |why: &dyn Display| -> Failure {
            format!("cannot serve leases at {}: {why}", path.display()).into()
        };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        {
            let shown = dir.display();
            if !is_usual(dir) {
                return Err(failed(&format!("there is no directory {shown}")));
            }
            let made = std::fs::DirBuilder::new().mode(0o755).create(dir);
            made.map_err(|e| failed(&format!("mkdir({shown}): {e}")))?;
        }
        let lock = LockFile::at(&beside(path)).lock(Duration::ZERO).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::TimedOut => failed(&format!("another daemon does already: {error}")),
            _ => failed(&error),
        })?;
        if Packets::connect(path, None).is_ok() {
            return Err(failed(&"another program, such as a service manager, listens there"));
        }
        if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(|e| failed(&e))?;
        }
        let socket = bound(path).map_err(|e| failed(&e))?;
        let file = file_at(path).map_err(|e| failed(&e))?;
        let bound = Self { socket, path: path.clone(), own: Some((file, lock)) };
        allow(settings, &bound.socket).map_err(|e| failed(&e))?;
        Ok(bound)
    }

    /// Takes a listening socket of a service manager, which keeps the path.
    pub(crate) fn handed_over(socket: OwnedFd) -> Result<Self, Failure> {
        use rustix::net::{getsockname, sockopt, SocketAddrUnix, SocketType};
        let kind = sockopt::socket_type(&socket)?;
        let address = SocketAddrUnix::try_from(getsockname(&socket)?);
        let address = address.ok().filter(|_| kind == SocketType::SEQPACKET);
        let is_listening = sockopt::socket_acceptconn(&socket)?;
        let Some(address) = address.filter(|_| is_listening) else {
            return Err("the socket for leases is no listening Unix socket of packets".into());
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        let path = address.path_bytes().unwrap_or_default();
        Ok(Self { socket, path: OsStr::from_bytes(path).into(), own: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let bound = self.own.as_ref().map(|(file, _)| *file);
        if bound.is_some() && file_at(&self.path).ok() == bound {
            // A failed removal only leaves a path without a listener.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns true for the directories of usual paths, which the daemon creates.
fn is_usual(dir: &Path) -> bool {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    [Some("/run".into()), of_user]
        .into_iter()
        .flatten()
        .any(|runtime| dir == runtime.join("glebed"))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// Lets the users of the settings connect.
fn allow(settings: &Settings, socket: &OwnedFd) -> io::Result<()> {
    let path = &settings.path;
    std::fs::set_permissions(path, PermissionsExt::from_mode(settings.mode))?;
    if let Some(group) = settings.group.as_deref().and_then(group_of) {
        match rustix::fs::chown(path, None, Some(Gid::from_raw(group))) {
            // Only root and members may give a file to the group.
            Err(rustix::io::Errno::PERM) => {}
            other => other?,
        }
    }
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// Returns the number of a group of the machine.
fn group_of(name: &str) -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use glebe_testing::Scratch;

    use super::*;

    fn refused(path: &Path) -> String {
        let settings = Settings { path: path.to_owned(), ..Settings::default() };
        Listening::bind(&settings).unwrap_err().to_string()
    }

    #[test]
    fn a_directory_that_is_missing_is_told_and_not_created() {
        let scratch = Scratch::new("listening");
        let dir = scratch.path().join("missing");
        let said = refused(&dir.join("leases"));
        assert!(said.ends_with(&format!("there is no directory {}", dir.display())), "{said}");
        assert!(!dir.exists());
    }

    #[test]
    fn the_second_daemon_is_told_of_the_first() {
        let scratch = Scratch::new("listening");
        let path = scratch.path().join("leases");
        let settings = Settings { path: path.clone(), ..Settings::default() };
        let first = Listening::bind(&settings).unwrap();
        let said = refused(&path);
        assert!(said.contains("another daemon") && said.contains("held by thread"), "{said}");
        assert!(!said.contains("waited"), "{said}");
        drop(first);
    }
}
