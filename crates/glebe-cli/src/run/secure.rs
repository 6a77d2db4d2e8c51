//! [`reason`] explains why the kernel would start a program in secure mode (AT_SECURE), in which
//! the loader ignores LD_PRELOAD. Source: ld.so(8), capabilities(7), security/commoncap.c.
//!
//! The mode bits alone do not decide: nosuid mounts and no_new_privs disable them, and root gains
//! nothing from setuid root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{getxattr, statvfs, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::no_new_privs;

const SETUID: u32 = 0o4000;
/// The setgid bit and group execute. Without group execute, setgid has another meaning.
const SETGID: u32 = 0o2010;

/// Returns the reason for secure mode as words that follow the program's name; `None` in normal
/// mode.
pub fn reason(program: &Path, metadata: &Metadata) -> Option<String> {
    let mode = if is_ignored(program) { 0 } else { metadata.mode() };
    let user = if mode & SETUID != 0 { metadata.uid() } else { geteuid().as_raw() };
    let group = if mode & SETGID == SETGID { metadata.gid() } else { getegid().as_raw() };
    if user != getuid().as_raw() {
        return Some(format!("runs as user {user}, not as its caller (setuid)"));
    }
    if group != getgid().as_raw() {
        return Some(format!("runs as group {group}, not as its caller's (setgid)"));
    }
    let gains = mode != 0 && !getuid().is_root() && has_capabilities(program);
    gains.then(|| "gains capabilities of its file".to_owned())
}

/// Returns true if the kernel ignores the file's bits and capabilities.
fn is_ignored(program: &Path) -> bool {
    let is_nosuid = |fs: rustix::fs::StatVfs| fs.f_flag.contains(StatVfsMountFlags::NOSUID);
    no_new_privs().unwrap_or(false) || statvfs(program).is_ok_and(is_nosuid)
}

fn has_capabilities(program: &Path) -> bool {
    // The buffer is longer than any known value (struct vfs_ns_cap_data). ERANGE means that the
    // value is longer still.
    let mut value = [0; 64];
    match getxattr(program, "security.capability", &mut value[..]) {
        Ok(len) => len > 0,
        Err(e) => e == Errno::RANGE,
    }
}
