//! Notes that memory is registered with a device, which happens at most once at a time.

use glebe_os::internal::sync::Ordering;

use crate::Contig;

/// Notes a registration. Returns false if there is one already.
pub fn begin_registration(contig: &Contig) -> bool {
    contig.registrations.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Forgets the registration, which has ended.
pub fn end_registration(contig: &Contig) {
    contig.registrations.store(0, Ordering::Release);
}
