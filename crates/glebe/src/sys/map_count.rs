//! `vm.max_map_count`: how many mappings a process may have.
//!
//! Beyond it every mmap of the process fails, whoever calls. Source: admin-guide/sysctl/vm.

use std::io;
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;

const PATH: &str = "/proc/sys/vm/max_map_count";

/// The limit, as the kernel has it now.
///
/// # Errors
/// If the file cannot be read or holds no number.
pub fn max_map_count() -> Result<u64, OsError> {
    let refused = |source| OsError::new("read", PATH, source);
    let text = file::read_text(Path::new(PATH)).map_err(refused)?;
    text.trim().parse().map_err(|_| refused(io::Error::other(format!("{text:?}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_limit() {
        assert!(max_map_count().unwrap() > 0);
    }
}
