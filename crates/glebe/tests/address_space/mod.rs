//! Address space that a part reserves is no memory: under `mlockall`, under limits of the process,
//! and for the largest numbers that a caller can give.
//!
//! Each test has a process of its own, whose limits it changes.
#![allow(unsafe_code)] // Safety: mlockall and setrlimit read plain numbers.

mod limits;
mod locked;
mod numbers;

use glebe::swap::cache::SwapCache;
use glebe::swap::Options;
use glebe::units::Bytes;

/// A line of `/proc/self/status`.
fn status(key: &str) -> Bytes {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    let kib: u64 = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    Bytes::new(kib << 10)
}

/// Sets a limit of this process, as far as it may have it; the limit.
fn limit(resource: libc::__rlimit_resource_t, bytes: Bytes) -> Bytes {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a local.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit.rlim_cur = bytes.get().min(limit.rlim_max);
    // SAFETY: reads a local.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    Bytes::new(limit.rlim_cur)
}

/// With encrypted files, where the library has a cipher.
fn sealed(options: Options) -> Options {
    #[cfg(feature = "encrypt")]
    let options = options.encrypted();
    options
}

/// As [`sealed`], of areas.
fn sealed_areas(cache: SwapCache) -> SwapCache {
    #[cfg(feature = "encrypt")]
    let cache = cache.encrypted();
    cache
}
