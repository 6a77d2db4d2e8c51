//! A [`Registration`] registers a reserve or a [`Contig`](crate::Contig) with CUDA piece by piece,
//! in the background, so that a GPU copies from it and to it at full speed. Feature `cuda`.
//!
//! ```no_run
//! use glebe::contig::{Contig, Source};
//! use glebe::cuda::{Registration, Runtime};
//! use glebe::reserve::{Request, Reserve};
//! use glebe::units::{Bytes, Pages};
//!
//! let memory = Contig::options().source(Source::Thp);
//! let reserve = Reserve::options().memory(memory).build(Bytes::gib(64))?;
//! let registration = Registration::new(Runtime::load()?, &reserve)?; // does not wait for CUDA
//! // Any pages that are aligned to their length lie in one piece.
//! let block = reserve.alloc(Request::new(Pages::new(256)).align(Pages::new(256)).any())?;
//! registration.wait(block.extent(), None)?; // waits for the block's pieces only
//! println!("{} of {} registered", registration.ready(), registration.total());
//! registration.close()?; // waits for the GPU, then unregisters
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A registration shares its memory, so the memory stays mapped while CUDA has its addresses. A
//! registered reserve neither grows nor shrinks.
//!
//! One thread per registration makes all calls that change CUDA's state. Other threads keep their
//! current device and last error. In a forked child, calls fail or do nothing.
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
