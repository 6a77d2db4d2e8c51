//! A [`SwapCache`] holds compressed pages of a program's own pager in the idle part of a reserve
//! or in ordinary memory.
//!
//! ```
//! use glebe::swap::cache::SwapCache;
//! use glebe::{page_size, reserve::Reserve, units::{Bytes, Pages}};
//!
//! let reserve = Reserve::new(Bytes::mib(16))?;
//! let cache = SwapCache::on(&reserve)?;
//! let area = cache.area(Pages::new(1024), &std::env::temp_dir(), Bytes::mib(8))?;
//! let page: Vec<u8> = (0..page_size().bytes().as_usize()).map(|at| (at / 9) as u8).collect();
//! area.store(7, &page)?; // written through
//! area.set_write_back(cache.usual_write_back())?; // the file may now get pages later
//! let mut out = vec![0; page.len()];
//! assert!(area.load(7, &mut out)? && out == page);
//! assert!(area.invalidate_page(7)? && !area.load(7, &mut out)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Area`] stores pages by offset, with or without its own file. A page in the file is *saved*.
//! **Lent pages hold only copies of saved pages**, so a recall writes nothing and waits for no
//! device. Other pages use the area's ordinary memory, within two limits on their compressed bytes:
//!
//! * *write-back*: bytes to be written later; see [`SwapCache::usual_write_back`].
//! * *put-back*: bytes never written.
//!
//! Both are 0 at first, which is *write-through*: the file has a page when its store returns.
//! Same-filled pages take no memory and no file.
//!
//! Cost: 32 bytes a page, the codec, one write per started 256 KiB of a call. Source: Linux's
//! frontswap; the three policies of GCMA (RFC v2, 2015).

mod area;
mod batch;
mod clean;
mod entries;
mod policy;
mod stats;
mod swap_cache;

pub use area::Area;
pub use stats::Stats;
pub use swap_cache::SwapCache;

#[cfg(test)]
mod tests;
