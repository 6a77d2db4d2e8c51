//! A [`Registration`] registers a reserve or a [`Contig`](crate::Contig) with CUDA piece by piece,
//! in the background, so that a GPU copies from it and to it at full speed. Feature `cuda`.
//!
//! ```no_run
//! use glebe::cuda::{Registration, Runtime};
//! use glebe::{units::{Bytes, Pages}, Reserve};
//!
//! let reserve = Reserve::new(Bytes::gib(64))?;
//! let registration = Registration::new(Runtime::load()?, &reserve)?; // returns at once
//! let block = reserve.alloc(Pages::new(256))?;
//! registration.wait(block.extent(), None)?; // waits for the block's pieces only
//! println!("{} of {} registered", registration.ready(), registration.total());
//! registration.close()?; // waits for the GPU, then unregisters
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A registration shares its memory, so the memory stays mapped while CUDA has its addresses. A
//! registered reserve neither grows nor shrinks.
//!
//! One thread per registration makes all calls that change CUDA's state. So no other thread gets a
//! current device or a last error from here. In a forked child, calls fail or do nothing.
//!
//! Positions count base pages from the start of the memory. Lock: a registration's state, for a few
//! instructions. Source: the CUDA runtime's reference, "Memory Management".

mod cut;
mod error;
mod memory;
mod options;
mod registration;
mod runtime;
mod state;
mod worker;

pub use error::{CudaError, CudaFailure};
pub use memory::Registrable;
pub use options::RegistrationOptions;
pub use registration::Registration;
pub use runtime::Runtime;
