//! The largest numbers that a caller can give, the least, and those beside a limit.

use glebe::units::Bytes;
use glebe::zpool::Pool;

use crate::alone;

#[test]
fn a_large_limit_makes_a_large_pool() {
    alone("numbers::a_large_limit_makes_a_large_pool", || {
        let mib = 1 << 20;
        for limit in [8 * mib - 1, 8 * mib, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX] {
            let pool = Pool::options().limit(Bytes::new(limit)).build();
            let pool = pool.unwrap_or_else(|error| panic!("{limit:#x}: {error}"));
            for nth in 0_u64..2000 {
                pool.insert(&nth.to_ne_bytes()).unwrap_or_else(|e| panic!("{limit:#x}: {e}"));
            }
        }
    });
}
