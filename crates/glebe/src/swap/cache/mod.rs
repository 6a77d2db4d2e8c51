//! Pages of a program's own pager, compressed, in the idle part of a reserve, and behind it a file.
//!
//! ```
//! use glebe::swap::cache::SwapCache;
//! use glebe::{reserve::Reserve, sys::page_size, units::{Bytes, Pages}};
//!
//! let reserve = Reserve::new(Bytes::mib(16))?;
//! let cache = SwapCache::on(&reserve)?;
//! let area = cache.area(Pages::new(1024), &std::env::temp_dir(), Bytes::mib(8))?;
//! let page: Vec<u8> = (0..page_size().bytes().as_usize()).map(|at| (at / 9) as u8).collect();
//! area.store(7, &page)?; // written through: the file has it when this returns
//! area.set_write_back(cache.usual_write_back())?; // from now on the file may have it later
//! let mut out = vec![0; page.len()];
//! assert!(area.load(7, &mut out)? && out == page);
//! assert!(area.invalidate_page(7)? && !area.load(7, &mut out)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Area`] has pages by their offset, and a file of its own or none. A page that the file has
//! is *saved*. **Lent pages hold copies of saved pages alone.** So a recall finds nothing to write
//! or to put back: it costs what a recall of clean cache pages costs, under every policy, and never
//! waits for a device. Pages that are not saved are in ordinary memory of the area, and two numbers
//! bound the bytes of their blocks:
//!
//! * *write-back*: bytes that wait to be written, a segment at a time, by the store that finds no
//!   room. [`SwapCache::usual_write_back`] suits most.
//! * *put-back*: bytes that need not be written, with a file or without.
//! * Both are zero at first, which is *write-through*: the file has a page when its store returns.
//!
//! Same-filled pages take no memory and no file. A page that does not fit is refused, and then
//! nothing is stored at its offset. A load that finds the kept copy gone reads the file. A checksum
//! is tested before a block is decoded: a page that fails is an error and never data.
//!
//! Cost: 32 bytes a page, the codec, a write for 256 KiB. Source: Linux's frontswap; GCMA (RFC v2,
//! 2015), whose three policies these are.

mod area;
mod batch;
mod clean;
mod entries;
mod policy;
mod stats;
mod swap_cache;

pub use area::Area;
// Each row says what it counts; the reference lists what programs name.
#[doc(hidden)]
pub use stats::Stats;
pub use swap_cache::SwapCache;

#[cfg(test)]
mod tests;
