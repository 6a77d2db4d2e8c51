//! `/proc/meminfo`: how much memory can be had without swapping. Source: proc_meminfo(5).

use std::io;
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;
use crate::units::Bytes;

const PATH: &str = "/proc/meminfo";

/// `MemAvailable`: an estimate by the kernel, of free memory and caches it can drop.
///
/// # Errors
/// If the file cannot be read or has no such line.
pub fn available() -> Result<Bytes, OsError> {
    let text =
        file::read_text(Path::new(PATH)).map_err(|source| OsError::new("read", PATH, source))?;
    parse(&text).ok_or_else(|| OsError::new("read", PATH, io::Error::other("no MemAvailable")))
}

fn parse(text: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10).map(Bytes::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_and_nothing_else() {
        let text = "MemFree:  9 kB\nMemAvailable:   24346680 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text), Some(Bytes::new(24_346_680 << 10)));
        assert_eq!(parse("MemAvailable: many kB\n"), None);
        assert!(available().is_ok());
    }
}
