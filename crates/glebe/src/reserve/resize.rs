//! [`Reserve`] grows and shrinks in use.
//!
//! `grow` moves memory into the reserve's addresses, opens it to tenants, and then adds it to the
//! free `Positions`. `shrink` takes and recalls memory like a block, and then maps read-only zeros
//! there. A late reader finds zeros and a higher epoch of the granule, so the read fails.
//!
//! Locks: `turn` per resize, then the positions' lock, held for one step per free extent.

use super::error::ReserveError;
use super::memory::{Memory, MemoryPart};
use super::owner::pages_of;
use super::positions::Positions;
use super::{Reserve, ReserveCore, GRANULE};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::lock;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// [`Resized`] is the memory gained or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// Length in bytes, rounded up.
    pub len: Bytes,
    /// Longest physical run in this memory.
    pub longest_run: Pages,
}

const LARGEST_PAGE: Bytes = Bytes::gib(1);

pub(super) fn whole(len: Bytes, unit: Bytes) -> Result<u64, ReserveError> {
    let units = len.get().div_ceil(unit.get());
    let rounded = units.checked_mul(unit.get()).filter(|len| *len > 0);
    let rounded = rounded.ok_or(ReserveError::BadLen { given: len, granule: unit })?;
    Ok(Bytes::new(rounded).pages_down(page_size()).get())
}

pub(super) fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

impl ReserveCore {
    pub(super) fn memory(&self) -> Result<&Memory, ReserveError> {
        let why = "it was built without ReserveOptions::room()";
        self.memory.as_ref().ok_or(ReserveError::FixedLen { why })
    }

    pub(super) fn grow(&self, asked: Bytes) -> Result<Resized, ReserveError> {
        let memory = self.memory()?;
        let pages = whole(asked, memory.least())?;
        let _turn = memory.turn()?;
        let mut had = Vec::new();
        for place in self.places(memory, pages)? {
            match memory.had(place) {
                Ok(part) => had.push(part),
                Err(why) => {
                    memory.give_up(had);
                    return Err(why);
                }
            }
        }
        let granule_pages = self.lent().granule_pages() as u64;
        let (runs, proof) = memory.runs_with(&mut had);
        let all = self.lent().pages() as u64;
        let next = match Positions::none_free(&runs, proof, all, granule_pages) {
            Ok(next) => next.on_nodes(&self.slots_with(memory, &had), self.busy.near.slots()),
            Err(why) => {
                memory.give_up(had);
                return Err(why.into());
            }
        };
        let came: Vec<Extent> = had.iter().flat_map(MemoryPart::left).copied().collect();
        had.iter().for_each(|part| self.lent().arrive(part.granules(granule_pages)));
        memory.add(had);
        self.lender().set_end(memory.end());
        let mut positions = lock(&self.positions);
        let old = positions.replace(next);
        came.iter().for_each(|pages| positions.free(*pages));
        drop(positions);
        drop(old);
        came.iter().for_each(|pages| self.lender().give_back(&pages_of(*pages)));
        Ok(Resized { len: bytes(pages), longest_run: memory.longest_in(&came) })
    }

    /// Returns no slots if the kernel does not tell a node.
    fn slots_with(&self, memory: &Memory, had: &[MemoryPart]) -> Vec<(Extent, usize)> {
        let near = &self.busy.near;
        match near.slots() {
            0 => Vec::new(),
            _ => near.slots_of(&memory.nodes_with(had, near.teller()).unwrap_or_default()),
        }
    }

    fn places(&self, memory: &Memory, pages: u64) -> Result<Vec<Extent>, ReserveError> {
        let unit = memory.unit().unwrap_or(page_size()).bytes().max(GRANULE);
        let aligns = [LARGEST_PAGE, unit, GRANULE].map(|align| align.pages_down(page_size()).get());
        // Skips alignments that would leave a gap, or divide a brick.
        let least = memory.least().pages_down(page_size()).get();
        let aligns = aligns.into_iter().filter(|align| pages % align == 0 && align % least == 0);
        let found = aligns.map(|align| memory.places(pages, align));
        let best = found.reduce(|best, next| match (&best, &next) {
            (Ok(one), Ok(other)) if one.len() <= other.len() => best,
            (Ok(_), Err(_)) => best,
            _ => next,
        });
        let best = best.unwrap_or(Err(0));
        best.map_err(|left| ReserveError::NoRoom {
            asked: bytes(pages),
            left: bytes(left),
            unit: memory.least(),
            room: memory.room(),
        })
    }

    pub(super) fn shrink(&self, asked: Bytes) -> Result<Resized, ReserveError> {
        let memory = self.memory()?;
        let _turn = memory.turn()?;
        let unit = memory.unit()?.bytes().max(GRANULE);
        let pages = whole(asked, unit)?;
        let gone = self.claim(memory, pages, unit)?;
        let longest_run = memory.longest_in(&gone);
        for (nth, pages) in gone.iter().enumerate() {
            if let Err(why) = self.give_away(memory, *pages) {
                gone[nth..].iter().for_each(|pages| self.free_positions(*pages));
                return Err(why);
            }
            self.lender().set_end(memory.end());
        }
        Ok(Resized { len: bytes(pages), longest_run })
    }

    /// Leaves at least one unit in the reserve.
    fn claim(&self, memory: &Memory, pages: u64, unit: Bytes) -> Result<Vec<Extent>, ReserveError> {
        let unit_pages = unit.pages_down(page_size()).get();
        let most = memory.present().get().saturating_sub(unit_pages);
        let mut positions = lock(&self.positions);
        self.drain_stock(&mut positions);
        let free = match pages <= most {
            true => match positions.take_units(pages, unit_pages) {
                Ok(found) => return Ok(found),
                Err(free) => free,
            },
            false => positions.units(unit_pages).min(most),
        };
        Err(ReserveError::NotGiven { asked: bytes(pages), free: bytes(free), unit })
    }

    /// After an error tenants can use the memory again.
    fn give_away(&self, memory: &Memory, gone: Extent) -> Result<(), ReserveError> {
        self.recall(gone, false, true)?;
        let run = pages_of(gone);
        if let Err(why) = memory.vacate(gone) {
            self.lent().give_back(&run);
            return Err(why.into());
        }
        let pages = self.lent().granule_pages();
        self.lent().depart(run.start / pages..run.end / pages);
        Ok(())
    }
}

impl Reserve {
    /// Adds `len` bytes of memory, rounded up to granules and bricks, from the reserve's source, in
    /// one run if possible. Takes about as long as zeroing the memory; only other resizes wait as
    /// long. Without [`Request::any`](super::Request::any), a block spans new and old memory only
    /// if their frames are adjacent.
    ///
    /// # Errors
    /// [`ReserveError::FixedLen`] without [room](super::ReserveOptions::room) or while a device has
    /// the addresses; [`ReserveError::NoRoom`]; [`ReserveError::BadLen`] if `len` is 0 or no whole
    /// number of the source's pages; [`ReserveError::Contig`], [`ReserveError::Os`],
    /// [`ReserveError::Forked`]. An error adds nothing.
    pub fn grow(&self, len: Bytes) -> Result<Resized, ReserveError> {
        self.inner.get()?.grow(len)
    }

    /// Gives `len` bytes, rounded up to granules and the source's pages, back to the system.
    /// Tenants lose pages; blocks and promises do not.
    ///
    /// ```
    /// # use glebe::{contig::{Contig, Source}, reserve::{ReserveError, Reserve}, units::Bytes};
    /// # fn main() -> Result<(), ReserveError> {
    /// # let options = Contig::options().source(Source::Plain);
    /// let roomy = Reserve::options().room(Bytes::mib(8));
    /// let reserve = roomy.memory(options).build(Bytes::mib(2))?;
    /// let came = reserve.grow(Bytes::mib(4))?;
    /// println!("{} more, longest run {}", came.len, came.longest_run);
    /// reserve.shrink(came.len)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ReserveError::FixedLen`] without [room](super::ReserveOptions::room), for a dma-heap's
    /// memory or while a device has the addresses; [`ReserveError::NotGiven`] with the length that
    /// can be given; [`ReserveError::BadLen`] if `len` is 0; [`ReserveError::Forked`];
    /// [`ReserveError::Os`], also for pinned memory before Linux 5.13, which cannot unpin a part.
    /// Memory given back before an error stays with the system.
    pub fn shrink(&self, len: Bytes) -> Result<Resized, ReserveError> {
        self.inner.get()?.shrink(len)
    }
}
