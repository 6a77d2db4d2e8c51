//! [`max_map_count`] reads the limit on mappings of a process; [`map_count`] counts the mappings.
//!
//! Source: admin-guide/sysctl/vm.

use std::fs::OpenOptions;
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::file;

const PATH: &str = "/proc/sys/vm/max_map_count";
const MAPS: &str = "/proc/self/maps";
/// Bytes per read, so few that the allocator makes no new mapping for the buffer.
const PART: usize = 16 << 10;

pub fn max_map_count() -> Result<u64, OsError> {
    file::number(PATH)
}

pub fn map_count() -> Result<u64, OsError> {
    let count = || {
        let mut maps = file::open(Path::new(MAPS), OpenOptions::new().read(true))?;
        let mut part = vec![0; PART];
        let mut lines = 0;
        loop {
            match file::read_part(&mut maps, &mut part)? {
                0 => return Ok(lines),
                len => lines += part[..len].iter().filter(|byte| **byte == b'\n').count() as u64,
            }
        }
    };
    count().map_err(|source| OsError::new("read", MAPS, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_mappings_within_the_limit() {
        let count = map_count().unwrap();
        assert!(count > 0 && count <= max_map_count().unwrap(), "{count}");
    }

    #[test]
    fn there_is_a_limit() {
        assert!(max_map_count().unwrap() > 0);
    }
}
