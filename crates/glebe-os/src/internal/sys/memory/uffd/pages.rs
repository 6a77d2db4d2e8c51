//! [`Pager`] moves or write-protects pages of registered (*armed*) ranges by a userfaultfd.
//!
//! The functions on pages allocate nothing, because signal handlers call them. The kernel moves
//! pages of one VMA per call. [`UNMOVABLE`] means that a page is read-only, or that only one of
//! page and target is locked. Source: UFFDIO_MOVE(2const) (Linux 6.8), UFFDIO_WRITEPROTECT(2const)
//! (5.7).
#![allow(unsafe_code)]

use std::io;

use super::{Uffd, FEATURE_SIGBUS, REGISTER_MODE_MISSING, TYPE};
use crate::error::OsError;
use crate::internal::sys::fault::point;
use crate::internal::sys::memory::mincore;
use crate::internal::sys::page_size;
use crate::internal::sys::processes::sigbus::fill;
use crate::units::Bytes;

const REGISTER_MODE_WP: u64 = 1 << 1;
const FEATURE_PAGEFAULT_WP: u64 = 1 << 0;
const FEATURE_MOVE: u64 = 1 << 16;
/// No page is at the source of a move.
pub const MISSING: i32 = libc::ENOENT;
/// The program locked or protected the page or its target.
pub const UNMOVABLE: i32 = libc::EINVAL;
/// The kernel has merged the page with others, or a device has pinned the page.
pub const SHARED: i32 = libc::EBUSY;
const MODE_WP: u64 = 1 << 0;
/// Most retries in a row.
const TRIES: u32 = 1000;

/// `struct uffdio_move`.
#[repr(C)]
struct Move {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes moved, or a negative error number.
    done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct Protect {
    start: u64,
    len: u64,
    mode: u64,
}

const _: () = assert!(size_of::<Move>() == 40 && size_of::<Protect>() == 24);

#[derive(Debug)]
pub struct Pager {
    uffd: Uffd,
    moves: bool,
}

impl Pager {
    /// Opens a pager that protects pages, or moves them if `moves` is true and the kernel can.
    pub fn open(moves: bool) -> Result<Self, OsError> {
        let by_move = || Uffd::open_for(FEATURE_SIGBUS | FEATURE_MOVE, "UFFD_FEATURE_MOVE");
        if let Some(uffd) = moves.then(by_move).and_then(Result::ok) {
            return Ok(Self { uffd, moves: true });
        }
        let names = "UFFD_FEATURE_SIGBUS, UFFD_FEATURE_PAGEFAULT_FLAG_WP";
        let uffd = Uffd::open_for(FEATURE_SIGBUS | FEATURE_PAGEFAULT_WP, names)?;
        Ok(Self { uffd, moves: false })
    }

    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Arms a range: a touch of a missing or protected page raises SIGBUS.
    ///
    /// # Safety
    /// See [`Uffd::register`].
    pub unsafe fn arm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let writes = if self.moves { 0 } else { REGISTER_MODE_WP };
        // SAFETY: the caller keeps the contract.
        unsafe { self.uffd.register_for(addr, len, REGISTER_MODE_MISSING | writes) }.map(drop)
    }

    /// Moves pages to a hole. Returns the number of bytes moved, and any error that ended the move.
    ///
    /// # Safety
    /// The caller owns both ranges, and no reference to the moved bytes exists.
    pub unsafe fn shift(&self, to: usize, from: usize, len: usize) -> (usize, Option<i32>) {
        let page = page_size().bytes().as_usize();
        let (mut at, mut most, mut tries) = (0, len, 0);
        while at < len {
            let (to, from, now) = ((to + at) as u64, (from + at) as u64, most.min(len - at));
            let mut arg = Move { to, from, len: now as u64, mode: 0, done: 0 };
            // SAFETY: the kernel reads and writes one `Move`; the caller owns the ranges.
            let moved = unsafe { self.control(libc::_IOWR::<Move>(TYPE, 0x05), &mut arg) };
            match (moved, usize::try_from(arg.done)) {
                (Ok(()), _) => (at, most, tries) = (at + now, fill::longer(now), 0),
                (Err(_), Ok(some @ 1..)) => (at, tries) = (at + some, 0),
                (Err(libc::EAGAIN | libc::EINTR), _) if tries < TRIES => tries += 1,
                // Linux 6.18 may move a page, try again, and report EEXIST.
                (Err(libc::EEXIST), _) if is_missing(from as usize) => (at, tries) = (at + page, 0),
                // The run may span two VMAs, so a shorter move may succeed.
                (Err(UNMOVABLE), _) if now > page => most = fill::shorter(now, page),
                (Err(errno), _) => return (at, Some(errno)),
            }
        }
        (at, None)
    }

    /// # Safety
    /// The caller owns the range and handles the SIGBUS of protected pages.
    pub unsafe fn protect(&self, at: usize, len: usize, is_on: bool) -> Result<(), i32> {
        let mode = if is_on { MODE_WP } else { 0 };
        for _ in 0..TRIES {
            let mut arg = Protect { start: at as u64, len: len as u64, mode };
            // SAFETY: the kernel reads one `Protect`; the caller owns the range.
            match unsafe { self.control(libc::_IOWR::<Protect>(TYPE, 0x06), &mut arg) } {
                Err(libc::EAGAIN | libc::EINTR) => {}
                done => return done,
            }
        }
        Err(libc::EAGAIN)
    }

    /// # Safety
    /// The caller owns the range, which this descriptor armed.
    pub unsafe fn fill(&self, to: usize, from: &[u8], page: usize) -> Result<(), i32> {
        refusal("ioctl")?;
        // SAFETY: `from` is a slice; the caller owns the range.
        unsafe { fill::copy(self.uffd.descriptor(), to, from.as_ptr(), from.len(), page) }
    }

    /// # Safety
    /// See [`Uffd::control`].
    unsafe fn control<T>(&self, request: libc::Ioctl, arg: &mut T) -> Result<(), i32> {
        // SAFETY: the caller keeps the contract.
        let done = unsafe { self.uffd.control(request, arg) };
        done.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }
}

fn is_missing(addr: usize) -> bool {
    let mut seen = [1];
    mincore::look(addr, &mut seen).is_ok() && seen[0] & 1 == 0
}

fn refusal(call: &'static str) -> Result<(), i32> {
    let refused = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    point(call).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Pages;

    const PAGES: usize = 3;

    fn armed(pager: &Pager, bytes: [Option<u8>; PAGES]) -> usize {
        let page = page_size().bytes().as_usize();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the mapping is new and stays mapped.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), PAGES * page, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, PAGES * page, libc::MADV_NOHUGEPAGE);
            for (nth, byte) in bytes.iter().enumerate() {
                byte.map(|byte| at.cast::<u8>().add(nth * page).write_volatile(byte));
            }
            pager.arm(at.addr(), Pages::new(PAGES as u64).bytes(page_size())).unwrap();
            at.expose_provenance()
        }
    }

    #[test]
    fn a_page_that_moved_before_the_kernel_found_it_there_has_moved() {
        let pager = match Pager::open(true) {
            Ok(pager) if pager.moves() => pager,
            other => return println!("skipped: no UFFDIO_MOVE: {other:?}"),
        };
        let page = page_size().bytes().as_usize();
        let to = armed(&pager, [None, Some(1), None]);
        let from = armed(&pager, [Some(7), None, Some(9)]);
        // SAFETY: this test's memory, without references.
        assert_eq!(unsafe { pager.shift(to, from, PAGES * page) }, (PAGES * page, None));
        let at = |nth: usize| std::ptr::with_exposed_provenance::<u8>(to + nth * page);
        // SAFETY: present pages.
        assert_eq!([0, 1, 2].map(|nth| unsafe { at(nth).read_volatile() }), [7, 1, 9]);

        let from = armed(&pager, [Some(2), None, None]);
        // SAFETY: this test's memory, without references.
        assert_eq!(unsafe { pager.shift(to, from, page) }, (0, Some(libc::EEXIST)));
    }

    fn split(at: usize) -> usize {
        let page = page_size().bytes().as_usize();
        let middle = std::ptr::with_exposed_provenance_mut(at + page);
        // SAFETY: the memory is a test's, and the advice changes no contents.
        assert_eq!(unsafe { libc::madvise(middle, page, libc::MADV_RANDOM) }, 0);
        at
    }

    fn bytes_at(at: usize) -> [u8; PAGES] {
        let page = page_size().bytes().as_usize();
        let at = |nth: usize| std::ptr::with_exposed_provenance::<u8>(at + nth * page);
        // SAFETY: present pages of a test.
        std::array::from_fn(|nth| unsafe { at(nth).read_volatile() })
    }

    #[test]
    fn holes_of_several_mappings_are_filled_in_one_call() {
        let page = page_size().bytes().as_usize();
        for moves in [true, false] {
            let pager = match Pager::open(moves) {
                Ok(pager) => pager,
                Err(error) => return println!("skipped: {error}"),
            };
            let to = split(armed(&pager, [None, None, None]));
            let from: Vec<u8> = (1..=PAGES as u8).flat_map(|byte| vec![byte; page]).collect();
            // SAFETY: this test's memory, without references.
            unsafe { pager.fill(to, &from, page) }.unwrap();
            assert_eq!(bytes_at(to), [1, 2, 3]);
            let to = split(armed(&pager, [None, Some(9), None]));
            pager.uffd.fill_holes(to, Pages::new(PAGES as u64).bytes(page_size())).unwrap();
            assert_eq!(bytes_at(to), [0, 9, 0]);
        }
    }

    #[test]
    fn pages_of_several_mappings_are_moved_and_those_that_cannot_be_are_named() {
        let pager = match Pager::open(true) {
            Ok(pager) if pager.moves() => pager,
            other => return println!("skipped: no UFFDIO_MOVE: {other:?}"),
        };
        let page = page_size().bytes().as_usize();
        let to = split(armed(&pager, [None, None, None]));
        let from = split(armed(&pager, [Some(7), Some(8), Some(9)]));
        // SAFETY: this test's memory, without references.
        assert_eq!(unsafe { pager.shift(to, from, PAGES * page) }, (PAGES * page, None));
        assert_eq!(bytes_at(to), [7, 8, 9]);
        let middle = std::ptr::with_exposed_provenance_mut(to + page);
        // SAFETY: this test's memory, without references.
        unsafe {
            assert_eq!(libc::mprotect(middle, page, libc::PROT_READ), 0);
            assert_eq!(pager.shift(from, to, PAGES * page), (page, Some(UNMOVABLE)));
        }
    }
}
