//! [`Memory`]: the same number of bytes, populated, had in the ways that are compared.
//!
//! *memalign* is what a program has that asks for aligned memory and no more: base pages, also
//! where the machine would give huge ones unasked. *hugetlb* is the pool's pages in the order in
//! which the kernel hands them out. *glebe* is the library's, with the source that it chooses by
//! itself. Every page is there when [`Memory::obtain`] returns; what that took is measured, of the
//! calling thread, which does all of it. Units: bytes, microseconds.
//!
//! # Safety
//! A `Memory` owns its bytes: by malloc until they are freed, by a peer's block or by a mapping of
//! the library whose pointer nobody else has. They are zeros of the kernel's or what was written
//! here, so every word of them is a value.
#![allow(unsafe_code)]

use std::ptr;
use std::slice;

use glebe::contig::{Contig, Options};
use glebe::error::OsError;
use glebe::sys::madvise::{advise, transparent_huge_page, Advice};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, PageSize};

use super::Error;
use crate::clock::{Elapsed, Stopwatch};
use crate::peers::{Peer, PeerBlock};

/// What is left to the machine whatever is measured.
pub(crate) const LEFT: Bytes = Bytes::mib(1536);
/// The library takes more pages than it keeps, by this part of those that it keeps.
const SPARE_SHARE: u64 = 4;

/// A way to have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `posix_memalign`, without huge pages.
    Memalign,
    /// `posix_memalign`, with transparent huge pages.
    MemalignThp,
    /// Pages of the hugetlb pool as the kernel hands them out.
    Hugetlb,
    /// The library's.
    Glebe,
}

impl Kind {
    /// Every one, the base of the comparison first.
    pub(crate) const ALL: [Self; 4] =
        [Self::Memalign, Self::MemalignThp, Self::Hugetlb, Self::Glebe];

    /// The name in tables and results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memalign => "memalign",
            Self::MemalignThp => "memalign_thp",
            Self::Hugetlb => "hugetlb",
            Self::Glebe => "glebe",
        }
    }
}

/// Bytes, all of them present.
#[derive(Debug)]
pub(crate) struct Memory {
    base: usize,
    len: usize,
    obtained: Elapsed,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Malloc { _block: Malloc },
    Peer { _block: PeerBlock },
    Glebe(Box<Contig>),
}

/// Freed when dropped.
#[derive(Debug)]
struct Malloc(usize);

impl Malloc {
    fn aligned(len: usize, align: usize) -> Result<Self, OsError> {
        let mut at = ptr::null_mut();
        // SAFETY: `at` is a local that the call writes if it succeeds.
        let refused = unsafe { libc::posix_memalign(&raw mut at, align, len) };
        if refused != 0 {
            let error = std::io::Error::from_raw_os_error(refused);
            return Err(OsError::new("posix_memalign", Bytes::new(len as u64).to_string(), error));
        }
        Ok(Self(at.expose_provenance()))
    }
}

impl Drop for Malloc {
    fn drop(&mut self) {
        // SAFETY: from posix_memalign, freed once; its memory's owner is gone with it.
        unsafe { libc::free(ptr::with_exposed_provenance_mut(self.0)) };
    }
}

impl Memory {
    /// Has `len` bytes in the way of `kind`.
    ///
    /// # Errors
    /// Why not: too little memory, no such pages, no privilege.
    pub(crate) fn obtain(kind: Kind, len: Bytes) -> Result<Self, Error> {
        fits(len)?;
        match kind {
            Kind::Memalign => Self::malloc(len, Advice::NoHugePage),
            Kind::MemalignThp => Self::malloc(len, Advice::HugePage),
            Kind::Hugetlb => {
                let (block, obtained) = Peer::SurplusHugetlb.alloc(len.pages_up(page_size()))?;
                let base = block.address();
                Ok(Self::new(base, len, obtained, Owner::Peer { _block: block }))
            }
            Kind::Glebe => Self::glebe(Contig::options().threads(1), len),
        }
    }

    /// The library's memory as `options` say; what threads other than this one took is not in
    /// [`Memory::obtained`].
    pub(crate) fn glebe(options: Options, len: Bytes) -> Result<Self, Error> {
        let watch = Stopwatch::start();
        let contig = options.build(len)?;
        let obtained = watch.elapsed();
        let base = contig.mapping().as_ptr().expose_provenance();
        Ok(Self::new(base, len, obtained, Owner::Glebe(Box::new(contig))))
    }

    fn malloc(len: Bytes, advice: Advice) -> Result<Self, Error> {
        let align = transparent_huge_page().map_or(page_size().bytes(), PageSize::bytes);
        let watch = Stopwatch::start();
        let owner = Malloc::aligned(len.as_usize(), align.as_usize())?;
        // SAFETY: the range is the allocation, which is whole pages and not used yet.
        let advised = unsafe { advise(owner.0, len, advice) };
        // A kernel built without huge pages knows of neither advice, and small ones are right.
        if let (Err(error), Advice::HugePage) = (advised, advice) {
            return Err(error.into());
        }
        // SAFETY: as above; contents stay.
        unsafe { advise(owner.0, len, Advice::PopulateWrite)? };
        let obtained = watch.elapsed();
        Ok(Self::new(owner.0, len, obtained, Owner::Malloc { _block: owner }))
    }

    fn new(base: usize, len: Bytes, obtained: Elapsed, owner: Owner) -> Self {
        Self { base, len: len.as_usize(), obtained, owner }
    }

    /// What it took to have the bytes and to populate them.
    pub(crate) fn obtained(&self) -> Elapsed {
        self.obtained
    }

    /// The library's own view, where it is the library's.
    pub(crate) fn contig(&self) -> Option<&Contig> {
        match &self.owner {
            Owner::Glebe(contig) => Some(contig),
            Owner::Malloc { .. } | Owner::Peer { .. } => None,
        }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: see the file's head; nobody writes while this is borrowed.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.base), self.len) }
    }

    /// All bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: see the file's head; exclusive by `&mut`.
        unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.base), self.len) }
    }

    /// All whole words.
    pub(crate) fn words(&self) -> &[u64] {
        let words = self.len / size_of::<u64>();
        // SAFETY: as `bytes`; the base is the start of a page, and any bits are a word.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.base), words) }
    }
}

/// Whether the machine has that much and [`LEFT`] besides, with what the library takes to choose
/// from.
///
/// # Errors
/// [`Error::TooLarge`], with what there is.
pub(crate) fn fits(len: Bytes) -> Result<(), Error> {
    let available = meminfo::available()?;
    let most = most_of(available);
    match len <= most {
        true => Ok(()),
        false => Err(Error::TooLarge { len, most, available }),
    }
}

/// The largest memory that [`fits`] now, whole huge pages.
pub(crate) fn largest() -> Result<Bytes, Error> {
    let huge = transparent_huge_page().unwrap_or_else(|_| page_size());
    Ok(most_of(meminfo::available()?).pages_down(huge).bytes(huge))
}

fn most_of(available: Bytes) -> Bytes {
    Bytes::new(available.saturating_sub(LEFT).get() / (SPARE_SHARE + 1) * SPARE_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_gives_zeros_that_are_there_or_says_why_not() {
        for kind in Kind::ALL {
            let mut memory = match Memory::obtain(kind, Bytes::mib(4)) {
                Ok(memory) => memory,
                Err(why) => {
                    println!("skipped: {}: {why}", kind.name());
                    continue;
                }
            };
            assert_eq!(memory.words().as_ptr().addr() % page_size().bytes().as_usize(), 0);
            assert_eq!(memory.words().len() * 8, 4 << 20, "{kind:?}");
            assert!(memory.bytes().iter().all(|&byte| byte == 0), "{kind:?}");
            memory.bytes_mut()[5] = 1;
            assert_ne!(memory.words()[0], 0);
            assert_eq!(memory.contig().is_some(), kind == Kind::Glebe);
            assert!(memory.obtained().cpu_us > 0.0);
        }
    }

    #[test]
    fn no_kind_takes_what_the_machine_needs() {
        assert_eq!(most_of(LEFT), Bytes::ZERO);
        assert_eq!(most_of(Bytes::new(LEFT.get() + 1000)), Bytes::new(800));
        let much = Bytes::new(1 << 50);
        for kind in Kind::ALL {
            let refused = Memory::obtain(kind, much).map(|_| ());
            assert!(matches!(refused, Err(Error::TooLarge { .. })), "{kind:?}: {refused:?}");
        }
    }
}
