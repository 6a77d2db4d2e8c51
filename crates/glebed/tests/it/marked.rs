//! Marks a lease every 512 KiB, and checks the marks. Prints `wrong` for a byte of somebody else.

use glebe::units::Bytes;
use glebe_lease::{Lease, LeaseError};

const EACH: u64 = 512 << 10;

fn places(lease: &Lease) -> impl Iterator<Item = Bytes> {
    (0..lease.len().get() / EACH).map(|nth| Bytes::new(nth * EACH))
}

pub fn check(lease: &Lease, wanted: [u8; 4]) {
    for place in places(lease) {
        let mut seen = [0; 4];
        match lease.read(place, &mut seen) {
            Ok(()) if seen != wanted => println!("wrong {seen:?} for {wanted:?}"),
            Ok(()) | Err(LeaseError::Revoked) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Checks for zeros, writes marks and checks these.
pub fn mark(lease: &Lease, mark: [u8; 4]) {
    check(lease, [0; 4]);
    for place in places(lease) {
        let _ = lease.write(place, &mark);
    }
    check(lease, mark);
}
