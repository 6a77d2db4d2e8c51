//! Idle memory of a daemon becomes segments of a Mooncake Store.
//!
//! [`SegmentLender`] holds a revocable lease for each segment. A helper process with Mooncake's own
//! Python package, the *agent*, mounts the leases' files as segments. When the daemon recalls a
//! lease, the agent unmounts the segment without a grace period. If it does not do so in time, the
//! lender kills it. Only then does the lender release the lease, so the store never reads or writes
//! memory that another client has. The daemon cuts the file of each released lease, too.
//!
//! # Addresses
//! Readers and writers of the store may use an address of a segment for some time after its end,
//! so no later segment gets that address: the agent keeps the range reserved without memory. An
//! agent that replaces another one starts after [`Settings::rest`], when those addresses are no
//! longer in use.

// Each module uses only modules above it.
mod agent;
mod backoff;
mod lender;
mod line;
mod log;
mod settings;
mod slot;
mod status;

pub use backoff::Backoff;
pub use lender::SegmentLender;
pub use settings::{LendError, Settings, ALIGN, SEGMENTS_MAX};
pub use status::ask;

#[doc(no_inline)]
pub use glebe_os::units;
