//! Growing and shrinking at run time, while tenants put and get and first class allocates.
//!
//! What comes is had as the reserve was, moved into the window, opened to tenants, and last given
//! to the positions. What goes is claimed as blocks are, recalled from tenants as blocks are, so
//! that nobody writes there any more, and only then replaced by addresses that read as zero: who
//! still reads finds those, and then another epoch. Locks: the memory's `turn`, one call at a time;
//! the positions, for one step a free extent, as for any choice of a place. Cost: that of
//! populating what comes; of recalling what goes, and of its pages' way back into the kernel.

use super::error::Error;
use super::memory::{Memory, Part};
use super::owner::pages_of;
use super::positions::Positions;
use super::{Inner, Reserve, GRANULE};
use crate::extent::Extent;
use crate::sync::lock;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// Memory that came to a reserve, or went from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// How much: what was asked for, rounded up to whole pages of it.
    pub len: Bytes,
    /// The longest physical run in it.
    pub longest_run: Pages,
}

/// Places of memory are tried at multiples of this first: pages of a pool go nowhere else.
const LARGEST_PAGE: Bytes = Bytes::gib(1);

/// `len` in base pages, rounded up to whole units.
pub(super) fn whole(len: Bytes, unit: Bytes) -> Result<u64, Error> {
    let units = len.get().div_ceil(unit.get());
    let rounded = units.checked_mul(unit.get()).filter(|len| *len > 0);
    let rounded = rounded.ok_or(Error::BadLen { given: len, granule: unit })?;
    Ok(Bytes::new(rounded).pages_down(page_size()).get())
}

pub(super) fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

impl Inner {
    pub(super) fn memory(&self) -> Result<&Memory, Error> {
        let why = "it was built without Options::room()";
        self.memory.as_ref().ok_or(Error::FixedLen { why })
    }

    pub(super) fn grow(&self, asked: Bytes) -> Result<Resized, Error> {
        let (memory, pages) = (self.memory()?, whole(asked, GRANULE)?);
        let _turn = memory.turn();
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
            Ok(next) => next,
            Err(why) => {
                memory.give_up(had);
                return Err(why.into());
            }
        };
        let came: Vec<Extent> = had.iter().flat_map(Part::left).copied().collect();
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

    /// Where memory of so many pages is to come: in as few places as can be.
    fn places(&self, memory: &Memory, pages: u64) -> Result<Vec<Extent>, Error> {
        let unit = memory.unit().unwrap_or(page_size()).bytes().max(GRANULE);
        let aligns = [LARGEST_PAGE, unit, GRANULE].map(|align| align.pages_down(page_size()).get());
        // Of a larger page nothing comes unless the length is a multiple: then no gap is left.
        let aligns = aligns.into_iter().filter(|align| pages % align == 0);
        let found = aligns.map(|align| memory.places(pages, align));
        let best = found.reduce(|best, next| match (&best, &next) {
            (Ok(one), Ok(other)) if one.len() <= other.len() => best,
            (Ok(_), Err(_)) => best,
            _ => next,
        });
        let best = best.unwrap_or(Err(0));
        best.map_err(|left| Error::NoRoom {
            asked: bytes(pages),
            left: bytes(left),
            unit: GRANULE,
            room: memory.room(),
        })
    }

    pub(super) fn shrink(&self, asked: Bytes) -> Result<Resized, Error> {
        let memory = self.memory()?;
        let _turn = memory.turn();
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

    /// Takes the positions of so many pages in whole units; all but the last of the reserve.
    fn claim(&self, memory: &Memory, pages: u64, unit: Bytes) -> Result<Vec<Extent>, Error> {
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
        Err(Error::NotGiven { asked: bytes(pages), free: bytes(free), unit })
    }

    /// Gives the memory of pages away whose positions are taken. On an error tenants have it again.
    fn give_away(&self, memory: &Memory, gone: Extent) -> Result<(), Error> {
        // With `wait` a recall is never put off.
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
    /// Adds `len` of memory, rounded up to granules, had as the reserve was made: from its source
    /// and by its other [options](crate::contig::Options), a run of the whole length sought.
    /// Blocks, promises and tenants stay where they are. Takes about as long as zeroing it; other
    /// calls on the reserve go on meanwhile, but those that resize it wait.
    ///
    /// The new memory lies wherever the room is, in one piece of addresses where one is long
    /// enough.
    /// In a block it may follow other memory only where the frames are adjacent.
    ///
    /// # Errors
    /// [`Error::FixedLen`] of a reserve built without [room](super::Options::room);
    /// [`Error::NoRoom`]; [`Error::BadLen`] for nothing, or for what is no whole number of the
    /// source's pages;
    /// [`Error::Contig`] and [`Error::Os`] where the memory cannot be had; [`Error::Forked`].
    /// Nothing has come then.
    pub fn grow(&self, len: Bytes) -> Result<Resized, Error> {
        self.inner.get()?.grow(len)
    }

    /// Gives `len` of memory back to the system, rounded up to granules and whole pages of the
    /// source: in the fewest pieces, of these the highest. Tenants lose what they have there, as to
    /// a block; no block and no promise is touched. Takes as long as recalling and unmapping it.
    ///
    /// ```
    /// # use glebe::{contig::{Contig, Source}, reserve::{Error, Reserve}, units::Bytes};
    /// # fn main() -> Result<(), Error> {
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
    /// [`Error::FixedLen`] of a reserve built without [room](super::Options::room);
    /// [`Error::NotGiven`] with
    /// how much can be given now; [`Error::BadLen`] for nothing; [`Error::Forked`]; [`Error::Os`]
    /// as in [`Reserve::alloc`], and for more mappings than the process may have, or a pin that
    /// the kernel does not end in parts (before Linux 5.13). Pieces that were given before an
    /// [`Error::Os`] are gone; [`Reserve::len`] says what is left.
    pub fn shrink(&self, len: Bytes) -> Result<Resized, Error> {
        self.inner.get()?.shrink(len)
    }
}
