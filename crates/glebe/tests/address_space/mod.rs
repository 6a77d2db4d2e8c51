//! Tests reserved addresses under `mlockall` and under limits, and huge numbers as arguments.
//!
//! Each test changes limits of its process or measures its memory, so it has its own process.
#![allow(unsafe_code)] // Safety: mlockall and setrlimit read plain numbers.

mod limits;
mod locked;
mod numbers;

use glebe::swap::cache::SwapCache;
use glebe::swap::SwapOptions;
use glebe::units::Bytes;

fn status(key: &str) -> Bytes {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    let kib: u64 = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    Bytes::new(kib << 10)
}

fn limit(resource: libc::__rlimit_resource_t, bytes: Bytes) -> Bytes {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `getrlimit` writes a local.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit.rlim_cur = bytes.get().min(limit.rlim_max);
    // SAFETY: `setrlimit` reads a local.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    Bytes::new(limit.rlim_cur)
}

fn sealed(options: SwapOptions) -> SwapOptions {
    #[cfg(feature = "encrypt")]
    let options = options.encrypted();
    options
}

fn sealed_areas(cache: SwapCache) -> SwapCache {
    #[cfg(feature = "encrypt")]
    let cache = cache.encrypted();
    cache
}
