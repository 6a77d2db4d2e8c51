//! [`hint`]: memory that is there already, made as contiguous as the kernel can, and looked at.
//!
//! Contents stay; pages may move. Nothing is promised: what came is in the answer, true at that
//! moment, since nothing holds such pages in their frames. It costs a copy of every page that is
//! made part of a huge one. Source: madvise(2), `MADV_COLLAPSE` (Linux 6.1).
//!
//! # Safety
//! Neither advice changes what is in memory, whoever uses it meanwhile.
#![allow(unsafe_code)]

use super::{runs, Error, Proof, Run};
use crate::error::OsError;
use crate::sys::madvise::{advise, transparent_huge_page, Advice};
use crate::sys::page_size;
use crate::sys::pagemap::{frames_visible, Pagemap};
use crate::units::{Bytes, Pages};

/// What a hint came to.
#[derive(Debug)]
pub struct Hint {
    /// Whole base pages of the range that were looked at.
    pub pages: Pages,
    /// Bytes of it in transparent huge pages now.
    pub huge: Bytes,
    /// The runs, by position from the first whole page on; without frames where those are hidden.
    pub runs: Vec<Run>,
    /// What they rest on.
    pub proof: Proof,
    /// Why no or not all huge pages were made.
    pub refused: Option<OsError>,
}

impl Hint {
    /// The longest contiguity that is proved: at least one page.
    #[must_use]
    pub fn longest_run(&self) -> Pages {
        runs::longest(&self.runs)
    }
}

/// Asks for huge pages in the `len` bytes at `start`, makes them of what is there, and tells what
/// came. Pages that were never touched may come to be there.
///
/// # Errors
/// [`Error::ZeroLength`] where there is no whole page, [`Error::Os`] where part of the range is
/// not mapped or cannot be huge pages at all (of a file, shared).
pub fn hint(start: *const u8, len: Bytes) -> Result<Hint, Error> {
    let page = page_size().bytes().get();
    let from = start.expose_provenance() as u64;
    let too_long = || Error::TooLarge { asked: len, available: Bytes::new(u64::MAX - from) };
    let to = from.checked_add(len.get()).ok_or_else(too_long)?;
    let first = from.checked_next_multiple_of(page).ok_or(Error::ZeroLength)?;
    let last = to - to % page;
    if last <= first {
        return Err(Error::ZeroLength);
    }
    let (at, whole) = (first as usize, Bytes::new(last - first));
    // SAFETY: see the head of the file.
    unsafe { advise(at, whole, Advice::HugePage)? };
    let huge = transparent_huge_page()?.bytes().get();
    let (inner, end) = (first.saturating_add(huge - 1) / huge * huge, last - last % huge);
    let refused = if end > inner {
        let len = Bytes::new(end - inner);
        // SAFETY: as above.
        unsafe { advise(inner as usize, len, Advice::Collapse) }.err()
    } else {
        let what = format!("no aligned {} in the range", Bytes::new(huge));
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
        Some(OsError::new("madvise", format!("{at:#x}, {whole}, Collapse"), source))
    };
    let in_huge = Pagemap::open()?.huge_bytes(at, whole).unwrap_or(Bytes::ZERO);
    let all_huge =
        in_huge == whole && whole.get() % huge == 0 && first % huge == 0 && !frames_visible();
    let grain = if all_huge { transparent_huge_page()? } else { page_size() };
    let (runs, proof) = runs::read_at(at, whole, grain)?;
    Ok(Hint { pages: whole.pages_up(page_size()), huge: in_huge, runs, proof, refused })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, Visibility};

    #[test]
    fn memory_that_is_there_is_collapsed_and_keeps_its_bytes() {
        let Ok(huge) = transparent_huge_page() else {
            println!("skipped: no transparent huge pages");
            return;
        };
        let len = Bytes::new(2 * huge.bytes().get());
        let memory = Mapping::aligned(len, huge, Visibility::ORDINARY).unwrap();
        memory.refuse_huge_pages().unwrap();
        for at in (0..len.get()).step_by(page_size().bytes().as_usize()) {
            memory.write(Bytes::new(at), &at.to_ne_bytes());
        }
        let told = hint(memory.as_ptr(), len).unwrap();
        match &told.refused {
            None => assert_eq!(told.huge, len),
            Some(why) => println!("skipped: {why}"),
        }
        assert!(told.longest_run().get() >= 1 && told.pages == len.pages_up(page_size()));
        if told.huge == len {
            assert!(told.longest_run() >= huge.bytes().pages_down(page_size()));
        }
        for at in (0..len.get()).step_by(page_size().bytes().as_usize()) {
            let mut there = [0; 8];
            memory.read(Bytes::new(at), &mut there);
            assert_eq!(u64::from_ne_bytes(there), at);
        }
    }

    #[test]
    fn what_is_no_such_memory_is_an_error() {
        let page = page_size().bytes();
        let small = Mapping::aligned(page, page_size(), Visibility::ORDINARY).unwrap();
        assert!(matches!(hint(small.as_ptr(), Bytes::ZERO), Err(Error::ZeroLength)));
        assert!(matches!(hint(small.as_ptr(), Bytes::new(1)), Err(Error::ZeroLength)));
        assert!(hint(small.as_ptr(), Bytes::new(u64::MAX)).is_err());
        let top = std::ptr::without_provenance(usize::MAX);
        assert!(matches!(hint(top, Bytes::ZERO), Err(Error::ZeroLength)));
        small.write(Bytes::ZERO, &[1]);
        if transparent_huge_page().is_ok() {
            let told = hint(small.as_ptr(), page).unwrap();
            assert!(told.refused.is_some() && told.huge == Bytes::ZERO, "{told:?}");
        }
        let gone = small.as_ptr();
        drop(small);
        // Another thread may have mapped something there since.
        if let Err(error) = hint(gone, page) {
            assert!(matches!(error, Error::Os(_)), "{error}");
        }
    }
}
