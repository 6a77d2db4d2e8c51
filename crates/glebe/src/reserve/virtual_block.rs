//! [`VirtualBlock`]: blocks that are mapped side by side, as one slice.
//!
//! # Safety
//! A virtual block owns its blocks, so that nobody else reaches their pages, at neither address: no
//! other block has them, tenants only copy them out and throw that away, and the file that they are
//! of is the reserve's own. The view ends before the blocks do.
#![allow(unsafe_code)]

use std::ptr;

use super::block::{Block, Contiguity};
use super::error::Error;
use crate::extent::Extent;
use crate::sync::{fence, Ordering};
use crate::sys::page_size;
use crate::units::Pages;
use crate::vmap::View;

/// First-class memory that is contiguous in virtual addresses: the caller's alone until it is
/// dropped, then back with the tenants.
///
/// ```
/// # use glebe::{reserve::{Reserve, Error}, units::{Bytes, Pages}, vmap};
/// # use glebe::contig::{Contig, Source};
/// # fn main() -> Result<(), Error> {
/// # let options = Contig::options().source(Source::Plain);
/// let reserve = Reserve::builder().views().map_with(options, Bytes::mib(2))?;
/// let mut block = reserve.alloc_virtual(Pages::new(3))?;
/// block.bytes_mut()?.fill(1);
/// println!("{} pages in {} extents", block.pages().get(), block.extents().count());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct VirtualBlock {
    /// Where there is more than one block, or the caller wanted one: dropped before them.
    view: Option<View>,
    blocks: Vec<Block>,
}

/// Blocks that were not mapped, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotViewed {
    /// Why.
    #[source]
    pub error: Error,
    /// The blocks, as they were.
    pub blocks: Vec<Block>,
}

impl VirtualBlock {
    /// One block, where it is.
    pub(super) fn whole(block: Block) -> Self {
        Self { view: None, blocks: vec![block] }
    }

    pub(super) fn scattered(view: View, blocks: Vec<Block>) -> Self {
        // What was written at the blocks' own addresses comes before what is done at these.
        fence(Ordering::SeqCst);
        Self { view: Some(view), blocks }
    }

    /// Pages in it: what was asked for, or more, where the pages of its source are larger.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.extents().map(Extent::len).sum())
    }

    /// The places of its pages in the reserve, in the order in which they are mapped.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.blocks.iter().map(Block::extent)
    }

    /// How far it is known to be physically contiguous.
    #[must_use]
    pub fn contiguity(&self) -> Contiguity {
        match &self.blocks[..] {
            [block] => block.contiguity(),
            _ => Contiguity::VirtualOnly,
        }
    }

    /// The blocks, where they are; the view of them ends.
    #[must_use]
    pub fn into_blocks(self) -> Vec<Block> {
        let Self { view, blocks } = self;
        drop(view);
        // As in `scattered`, the other way round.
        fence(Ordering::SeqCst);
        blocks
    }

    /// Its first byte. The owner alone writes through it; in a forked child nothing is mapped
    /// there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        let own = || self.blocks.first().map_or(ptr::null_mut(), Block::as_ptr);
        self.view.as_ref().map_or_else(own, View::as_ptr)
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn bytes(&self) -> Result<&[u8], Error> {
        let len = self.len_bytes()?;
        // SAFETY: mapped as long as the view or the block lives, and this process's alone, as the
        // file's head says.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), len) })
    }

    /// The bytes, to be changed.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        let len = self.len_bytes()?;
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), len) })
    }

    fn len_bytes(&self) -> Result<usize, Error> {
        self.blocks.first().ok_or(Error::ZeroPages)?.inner.get()?;
        Ok(self.pages().bytes(page_size()).as_usize())
    }
}
