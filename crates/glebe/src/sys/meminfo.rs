//! `/proc/meminfo`: how much memory there is of each kind. Source: proc_meminfo(5).

use crate::error::OsError;
use crate::sys::file;
use crate::units::Bytes;

const PATH: &str = "/proc/meminfo";

/// `MemAvailable`: an estimate by the kernel, of free memory and caches it can drop.
///
/// # Errors
/// If the file cannot be read or has no such line.
pub fn available() -> Result<Bytes, OsError> {
    read("MemAvailable")
}

/// The amount on the line `name`.
///
/// # Errors
/// If the file cannot be read or has no such line.
pub fn read(name: &str) -> Result<Bytes, OsError> {
    let text = file::text(PATH)?;
    parse(&text, name).ok_or_else(|| file::strange(PATH.as_ref(), &format!("no {name}")))
}

fn parse(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10).map(Bytes::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_and_nothing_else() {
        let text = "MemFree:  9 kB\nMemAvailable:   24346680 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text, "MemAvailable"), Some(Bytes::new(24_346_680 << 10)));
        assert_eq!(parse("MemAvailable: many kB\n", "MemAvailable"), None);
        assert_eq!(parse(text, "Mem"), None);
        assert!(available().is_ok());
    }
}
