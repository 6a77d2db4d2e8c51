//! [`Own`] allocates objects of the keeper (the thread that marks free memory) outside the heap.
//!
//! In the heap, the keeper's first small object would take a chunk of 32 MiB, which large objects
//! could then not use. A heap of 100 MiB would take a fifth more memory. A pool in zeroed static
//! data has pieces of powers of two, with a free list for each size. malloc(3) serves other
//! threads, and objects that do not fit.
//!
//! # Safety
//! Only the keeper's thread uses the pool, and a process has at most one keeper. A forked child's
//! keeper resets the pool: none of its pieces is in use.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes, most of them never touched.
const LEN: usize = 512 << 10;
const SIZE_MIN: usize = 16;
const ALIGN: usize = 4096;
const SIZES: usize = (LEN / SIZE_MIN).ilog2() as usize + 1;

/// A global allocator for a library whose program has another.
#[derive(Debug)]
pub struct Own;

#[repr(C, align(4096))]
struct Bytes(UnsafeCell<[MaybeUninit<u8>; LEN]>);

struct Lists {
    /// Bytes ever given out.
    used: Cell<usize>,
    /// First free piece of each size; a free piece begins with the next piece's address.
    free: [Cell<*mut u8>; SIZES],
}

struct Pool {
    bytes: Bytes,
    lists: Lists,
}

// SAFETY: only the keeper's thread looks into the pool.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool {
    bytes: Bytes(UnsafeCell::new([MaybeUninit::uninit(); LEN])),
    lists: Lists { used: Cell::new(0), free: [const { Cell::new(ptr::null_mut()) }; SIZES] },
};

thread_local! {
    /// The cell needs no allocation and no destructor.
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread the only keeper.
pub(super) fn begin() {
    IS_KEEPER.set(true);
    POOL.lists.used.set(0);
    POOL.lists.free.iter().for_each(|list| list.set(ptr::null_mut()));
}

fn size_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SIZE_MIN).checked_next_power_of_two()?;
    let nth = (size / SIZE_MIN).ilog2() as usize;
    (nth < SIZES && layout.align() <= ALIGN).then_some(nth)
}

fn is_of_pool(at: *mut u8) -> bool {
    at.addr().wrapping_sub(POOL.bytes.0.get().addr()) < LEN
}

// SAFETY: each piece has one owner, is long enough, and is aligned to its size or 4 KiB.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let of_pool = if IS_KEEPER.get() { size_of(layout).and_then(take) } else { None };
        // SAFETY: the caller keeps the contract.
        of_pool.unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !is_of_pool(at) {
            // SAFETY: the caller keeps the contract.
            return unsafe { System.dealloc(at, layout) };
        }
        // Only the keeper may touch the lists. A piece freed by another thread stays unused.
        if let (true, Some(nth)) = (IS_KEEPER.get(), size_of(layout)) {
            put(at, nth);
        }
    }
}

fn take(nth: usize) -> Option<*mut u8> {
    let Lists { used, free } = &POOL.lists;
    let first = free[nth].get();
    if !first.is_null() {
        // SAFETY: a listed piece is free, in the pool, and begins with an address.
        free[nth].set(unsafe { first.cast::<*mut u8>().read() });
        return Some(first);
    }
    let size = SIZE_MIN << nth;
    let at = used.get().next_multiple_of(size.min(ALIGN));
    let end = at.checked_add(size).filter(|end| *end <= LEN)?;
    used.set(end);
    // SAFETY: the piece ends within the pool.
    Some(unsafe { POOL.bytes.0.get().cast::<u8>().add(at) })
}

fn put(at: *mut u8, nth: usize) {
    let list = &POOL.lists.free[nth];
    // SAFETY: the piece is free from now on, aligned, and has room for an address.
    unsafe { at.cast::<*mut u8>().write(list.get()) };
    list.set(at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Runs in a thread that becomes the keeper. No other test may use the pool.
    #[test]
    fn the_keeper_has_pieces_of_its_own_that_do_not_overlap_and_are_used_again() {
        let body = || {
            let get = |layout| {
                // SAFETY: no layout here has zero bytes.
                let at = unsafe { Own.alloc(layout) };
                assert!(!at.is_null() && at.addr() % layout.align() == 0, "{layout:?}");
                // SAFETY: the object was just allocated.
                unsafe { at.write_bytes(0xa5, layout.size()) };
                at
            };
            // SAFETY: each object was allocated with this layout, and is freed once.
            let drop = |at, layout| unsafe { Own.dealloc(at, layout) };
            let others = get(layout(100, 8));
            assert!(!is_of_pool(others), "not the keeper's yet");
            begin();
            let sizes = [1, 16, 17, 100, 4096, 10_000, 65_536, 3, 4097];
            let all: Vec<_> = sizes.iter().map(|&size| layout(size, 8)).collect();
            let pieces: Vec<_> = all.iter().map(|&layout| get(layout)).collect();
            let mut ranges: Vec<_> =
                pieces.iter().zip(sizes).map(|(at, size)| (at.addr(), at.addr() + size)).collect();
            ranges.sort_unstable();
            assert!(pieces.iter().all(|&at| is_of_pool(at)));
            assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0), "{ranges:x?}");
            drop(others, layout(100, 8));
            for (&at, &layout) in pieces.iter().zip(&all) {
                drop(at, layout);
                assert_eq!(get(layout), at, "{layout:?} again");
            }
            for (size, align) in [(LEN + 1, 8), (64, 8192), (isize::MAX as usize / 2, 8)] {
                assert_eq!(size_of(layout(size, align)), None, "{size} at {align}");
            }
            // The system serves what a full pool cannot.
            let half = layout(LEN / 4, 4096);
            let found: Vec<_> = (0..4).map(|_| get(half)).collect();
            assert!(is_of_pool(found[0]) && !is_of_pool(found[3]));
            found.into_iter().for_each(|at| drop(at, half));
            begin();
            assert!(is_of_pool(get(layout(LEN, 4096))), "all of it is there again");
            IS_KEEPER.set(false);
        };
        std::thread::spawn(body).join().unwrap();
    }
}
