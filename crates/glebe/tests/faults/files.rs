//! Where a life has its files: in memory, where a call that waits for a disk waits for nothing.

use std::env;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use glebe_testing::time::is_long;
use glebe_testing::Scratch;

const SHM: &str = "/dev/shm";

/// Makes a folder on tmpfs, or returns why there is none.
pub fn in_memory(what: &str) -> Result<Scratch, std::io::Error> {
    File::options().write(true).custom_flags(libc::O_TMPFILE).open(SHM)?;
    // This process runs one test, which has started no thread. The library keeps a lock in the
    // temporary folder, and that one stays where it is.
    let usual = env::var_os("TMPDIR");
    env::set_var("TMPDIR", SHM);
    let made = Scratch::new(what);
    match usual {
        Some(usual) => env::set_var("TMPDIR", usual),
        None => env::remove_var("TMPDIR"),
    }
    Ok(made)
}

/// Makes a folder for the files of a life, in memory if there is such a place. A long walk takes
/// the temporary folder: its file system may know calls that tmpfs refuses.
pub fn folder(what: &str) -> Scratch {
    match is_long() {
        true => Scratch::new(what),
        false => in_memory(what).unwrap_or_else(|_| Scratch::new(what)),
    }
}
