//! First class in pieces: memory that is contiguous in virtual addresses only.
//!
//! The pieces are blocks like any other: their positions are claimed in one hold of the positions'
//! lock, all or none, and each is recalled from the tenants as a block is. What makes them one is a
//! view over the reserve's own file.

use super::block::Block;
use super::error::Error;
use super::owner::Request;
use super::positions::scattered::Scattered;
use super::shared::Shared;
use super::virtual_block::{NotViewed, VirtualBlock};
use super::Inner;
use crate::contig::Contig;
use crate::extent::Extent;
use crate::sync::lock;
use crate::sys::page_size;
use crate::units::Pages;
use crate::vmap::{self, Space};

/// Addresses for views, for each byte of a reserve, most first: views that live never have more
/// than one, and those yet to be unmapped and the gaps between them take the rest.
const ADDRESSES: [u64; 3] = [8, 4, 2];

/// Room in the list of extents for those that come to be free while it is made.
const MORE_EXTENTS: usize = 64;

/// Where views of `contig` are to be, if it can be mapped again.
pub(super) fn space_for(contig: &Contig) -> Result<Option<Space>, Error> {
    let Some(file) = contig.file() else { return Ok(None) };
    let (page, pages) = (file.page(), contig.len().pages_down(file.page()));
    let mut made = Err(vmap::Error::Empty);
    for times in ADDRESSES {
        let len = Pages::new(pages.get() * times).checked_bytes(page).unwrap_or(contig.len());
        // A view that is yet to be unmapped may hold what tenants have stored since.
        made = Space::options().page(page).in_core_dumps(false).build(len);
        if made.is_ok() {
            break;
        }
    }
    Ok(Some(made?))
}

impl Inner {
    pub(super) fn alloc_virtual(
        shared: &Shared<Self>,
        asked: Pages,
    ) -> Result<VirtualBlock, Error> {
        let whole = Self::alloc(shared, Request::new(asked).any());
        let inner = shared.get()?;
        match (whole, &inner.views) {
            (Ok(block), _) => Ok(VirtualBlock::whole(block)),
            (Err(Error::NoRun { .. }), Some(space)) => inner.alloc_scattered(shared, asked, space),
            (Err(Error::NoRun { asked, largest }), None) => {
                Err(Error::NotMappable { asked, largest })
            }
            (Err(other), _) => Err(other),
        }
    }

    fn alloc_scattered(
        &self,
        shared: &Shared<Self>,
        asked: Pages,
        space: &Space,
    ) -> Result<VirtualBlock, Error> {
        let begin = self.clock().now();
        let grain = space.page().bytes().pages_down(page_size());
        let found = self.place_scattered(asked, grain)?;
        let mut blocks = Vec::with_capacity(found.len());
        let mut rest = found.into_iter();
        for pages in rest.by_ref() {
            // With `wait` a recall is never put off.
            if let Err(why) = self.recall(pages, false, true) {
                self.free_positions(pages);
                rest.for_each(|pages| self.free_positions(pages));
                return Err(why);
            }
            blocks.push(self.block(shared, pages));
        }
        let made = self.view_of(blocks, space).map_err(|refused| refused.error);
        if made.is_ok() {
            self.granted(begin);
        }
        made
    }

    /// Takes the positions of `asked` pages in whole grains, wherever they are.
    fn place_scattered(&self, asked: Pages, grain: Pages) -> Result<Vec<Extent>, Error> {
        let grains = asked.get().div_ceil(grain.get());
        let len = grains.saturating_mul(grain.get());
        let mut found = Vec::new();
        let mut extents = 0;
        loop {
            let most = usize::try_from(grains).unwrap_or(usize::MAX).min(extents + MORE_EXTENTS);
            found.reserve(most);
            let mut positions = lock(&self.positions);
            self.drain_stock(&mut positions);
            let taken = positions.take_scattered(len, grain.get(), &mut found);
            extents = positions.extents();
            drop(positions);
            match taken {
                Ok(()) => return Ok(found),
                Err(Scattered::NoRoom) => found.clear(),
                // Counted as a failure when no one extent was found.
                Err(Scattered::Free(free)) => {
                    return Err(Error::NotEnough { asked, free: Pages::new(free), grain });
                }
            }
        }
    }

    pub(super) fn view(
        shared: &Shared<Self>,
        blocks: Vec<Block>,
    ) -> Result<VirtualBlock, NotViewed> {
        let len = || blocks.iter().map(|block| block.extent.len()).sum();
        let space = (|| {
            let inner = shared.get()?;
            if blocks.is_empty() {
                return Err(Error::ZeroPages);
            }
            if let Some(other) = blocks.iter().find(|block| !block.inner.is(shared)) {
                return Err(Error::OtherReserve { given: other.extent });
            }
            let largest = blocks.iter().map(|block| block.extent.len()).max().unwrap_or(0);
            let (asked, largest) = (Pages::new(len()), Pages::new(largest));
            let space = inner.views.as_ref().ok_or(Error::NotMappable { asked, largest })?;
            Ok((inner, space))
        })();
        match space {
            Ok((inner, space)) => inner.view_of(blocks, space),
            Err(error) => Err(NotViewed { error, blocks }),
        }
    }

    /// Maps blocks of this reserve side by side.
    fn view_of(&self, blocks: Vec<Block>, space: &Space) -> Result<VirtualBlock, NotViewed> {
        let extents: Vec<Extent> = blocks.iter().map(|block| block.extent).collect();
        let view = match self.lent().frames().contig().file() {
            Some(file) => space.view(file, &extents).map_err(Error::View),
            None => Err(Error::Forked), // there is a space only where there is a file
        };
        match view {
            Ok(view) => Ok(VirtualBlock::scattered(view, blocks)),
            Err(error) => Err(NotViewed { error, blocks }),
        }
    }
}
