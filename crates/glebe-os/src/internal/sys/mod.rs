//! Only the files of this module call the kernel, by thin functions without policy.

pub mod call;
pub mod errno;
#[cfg(feature = "faults")]
pub mod fault;
#[cfg(not(feature = "faults"))]
pub mod fault;
pub mod files;
pub mod machine;
pub mod memory;
mod page;
pub mod probe;
pub mod processes;

pub use page::page_size;

/// True if tests can make calls fail.
pub const FAULTS: bool = cfg!(feature = "faults");
