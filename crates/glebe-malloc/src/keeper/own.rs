//! [`Own`]: memory for the keeper's own objects, apart from the heap that it keeps.
//!
//! In the heap they would be a second thread's: its first slice takes a chunk of 32 MiB, which
//! mimalloc keeps for small objects from then on, so that larger ones need memory elsewhere: a
//! fifth more in a heap of 100 MiB. The few paths and buffers that the keeper needs to find groups
//! come from a piece of the library's zeroed data: powers of two, with a list of what is free of
//! each. What it has no room for, and all that other threads ask for, is the C library's to give.
//! No lock: one thread comes here. Cost: some loads and stores.
//!
//! # Safety
//! The pool is the keeper's thread's alone, and there is one keeper at a time: in a forked child
//! there is none at first, and then one for which nothing of this lives on.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes, most of them never touched.
const LEN: usize = 512 << 10;
const SIZE_MIN: usize = 16;
/// The pool's own.
const ALIGN: usize = 4096;
/// As many sizes as are in the pool.
const SIZES: usize = (LEN / SIZE_MIN).ilog2() as usize + 1;

/// A global allocator for the library under a program that has another.
#[derive(Debug)]
pub struct Own;

#[repr(C, align(4096))]
struct Bytes(UnsafeCell<[MaybeUninit<u8>; LEN]>);

struct Lists {
    /// Bytes that were ever given out.
    used: Cell<usize>,
    /// The first free piece of each size; it begins with the address of the next.
    free: [Cell<*mut u8>; SIZES],
}

struct Pool {
    bytes: Bytes,
    lists: Lists,
}

// SAFETY: the keeper's thread alone looks into it.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool {
    bytes: Bytes(UnsafeCell::new([MaybeUninit::uninit(); LEN])),
    lists: Lists { used: Cell::new(0), free: [const { Cell::new(ptr::null_mut()) }; SIZES] },
};

thread_local! {
    /// It needs no allocation and no end of its own.
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the keeper from now on, and the only one.
pub(super) fn begin() {
    IS_KEEPER.set(true);
    POOL.lists.used.set(0);
    POOL.lists.free.iter().for_each(|list| list.set(ptr::null_mut()));
}

/// Which of the sizes holds it; none where none does.
fn size_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SIZE_MIN).checked_next_power_of_two()?;
    let nth = (size / SIZE_MIN).ilog2() as usize;
    (nth < SIZES && layout.align() <= ALIGN).then_some(nth)
}

/// Where `at` is in the pool, if it is.
fn is_of_pool(at: *mut u8) -> bool {
    at.addr().wrapping_sub(POOL.bytes.0.get().addr()) < LEN
}

// SAFETY: a piece is given to one at a time, is as long as its size says, and lies at a multiple of
// that or of 4 KiB; what is not the pool's is the system's.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let of_pool = if IS_KEEPER.get() { size_of(layout).and_then(take) } else { None };
        // SAFETY: passed on to the caller.
        of_pool.unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !is_of_pool(at) {
            // SAFETY: passed on to the caller.
            return unsafe { System.dealloc(at, layout) };
        }
        // Another thread would have no right to the lists; none is known to come.
        if let (true, Some(nth)) = (IS_KEEPER.get(), size_of(layout)) {
            put(at, nth);
        }
    }
}

/// A piece of the size, if there is room.
fn take(nth: usize) -> Option<*mut u8> {
    let Lists { used, free } = &POOL.lists;
    let first = free[nth].get();
    if !first.is_null() {
        // SAFETY: what is in the list is in the pool and free, and begins with an address.
        free[nth].set(unsafe { first.cast::<*mut u8>().read() });
        return Some(first);
    }
    let size = SIZE_MIN << nth;
    let at = used.get().next_multiple_of(size.min(ALIGN));
    let end = at.checked_add(size).filter(|end| *end <= LEN)?;
    used.set(end);
    // SAFETY: within the pool.
    Some(unsafe { POOL.bytes.0.get().cast::<u8>().add(at) })
}

fn put(at: *mut u8, nth: usize) {
    let list = &POOL.lists.free[nth];
    // SAFETY: free from now on, as long as an address at least, and aligned.
    unsafe { at.cast::<*mut u8>().write(list.get()) };
    list.set(at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// In a thread that is the keeper; of these tests one, since there is one pool.
    #[test]
    fn the_keeper_has_pieces_of_its_own_that_do_not_overlap_and_are_used_again() {
        let body = || {
            let get = |layout| {
                // SAFETY: no layout here is of no bytes.
                let at = unsafe { Own.alloc(layout) };
                assert!(!at.is_null() && at.addr() % layout.align() == 0, "{layout:?}");
                // SAFETY: just allocated.
                unsafe { at.write_bytes(0xa5, layout.size()) };
                at
            };
            // SAFETY: each was allocated with that layout, and goes once.
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
            // Until it is full; then the system gives.
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
