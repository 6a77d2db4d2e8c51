//! Marks a lease every 512 KiB, and checks the marks.

use glebe::units::Bytes;
use glebe_lease::{Lease, LeaseError};

const EACH: u64 = 512 << 10;

fn places(lease: &Lease) -> impl Iterator<Item = Bytes> {
    (0..lease.len().get() / EACH).map(|nth| Bytes::new(nth * EACH))
}

/// Returns what is wrong with the lease. Only one that `may_end` may have been revoked.
pub fn fault(lease: &Lease, wanted: [u8; 4], may_end: bool) -> Option<String> {
    places(lease).find_map(|place| {
        let mut seen = [0; 4];
        match lease.read(place, &mut seen) {
            Ok(()) => (seen != wanted).then(|| format!("wrong {seen:?} for {wanted:?}")),
            Err(LeaseError::Revoked) if may_end => None,
            Err(error) => Some(format!("wrong: {error}")),
        }
    })
}

/// Checks for zeros, writes marks and checks these. Returns what is wrong.
pub fn mark(lease: &Lease, mark: [u8; 4], may_end: bool) -> Option<String> {
    let before = fault(lease, [0; 4], may_end);
    for place in places(lease) {
        let _ = lease.write(place, &mark);
    }
    before.or_else(|| fault(lease, mark, may_end))
}

/// Prints what is wrong, which the parent reads.
pub fn tell(fault: Option<String>) {
    fault.iter().for_each(|fault| println!("{fault}"));
}
