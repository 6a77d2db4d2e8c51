//! Makes folders for the files of test bodies, in memory if possible, so that no call waits for a
//! disk.

use std::env;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use glebe_testing::time::is_long;
use glebe_testing::Scratch;

const SHM: &str = "/dev/shm";

/// Makes a folder on tmpfs. Fails if `SHM` does not support O_TMPFILE.
pub fn in_memory(what: &str) -> Result<Scratch, std::io::Error> {
    File::options().write(true).custom_flags(libc::O_TMPFILE).open(SHM)?;
    // This process runs one test, so no other thread reads the environment. TMPDIR is restored,
    // because the library keeps a lock file in the usual folder.
    let usual = env::var_os("TMPDIR");
    env::set_var("TMPDIR", SHM);
    let made = Scratch::new(what);
    match usual {
        Some(usual) => env::set_var("TMPDIR", usual),
        None => env::remove_var("TMPDIR"),
    }
    Ok(made)
}

/// Long tests use the temporary folder, which may support calls that tmpfs refuses.
pub fn folder(what: &str) -> Scratch {
    match is_long() {
        true => Scratch::new(what),
        false => in_memory(what).unwrap_or_else(|_| Scratch::new(what)),
    }
}
