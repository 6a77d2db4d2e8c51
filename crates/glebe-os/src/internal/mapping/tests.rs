//! Tests copies against plain slices, bounds, fork and threads.

use super::*;
use crate::internal::sys::machine::hugetlb::Pool;
use crate::internal::sys::memory::memory_file::MemoryFile;
use crate::units::Pages;
use glebe_testing::child::{in_child, map_at};

fn small() -> Mapping {
    Mapping::anonymous(Bytes::new(1), Visibility::PRIVATE).unwrap()
}

#[test]
fn length_is_rounded_up_to_whole_pages_and_zero_is_refused() {
    assert_eq!(small().len(), page_size().bytes());
    assert!(Mapping::anonymous(Bytes::ZERO, Visibility::PRIVATE).is_err());
    for len in [u64::MAX, u64::MAX / 2, 1 << 62] {
        assert!(Mapping::anonymous(Bytes::new(len), Visibility::PRIVATE).is_err(), "{len:#x}");
    }
}

#[test]
fn large_mappings_are_aligned_for_huge_pages() {
    let Ok(huge) = transparent_huge_page() else {
        println!("skipped: no transparent huge pages");
        return;
    };
    let len = Bytes::new(huge.bytes().get() / 2 * 5);
    let mapping = Mapping::anonymous(len, Visibility::ORDINARY).unwrap();
    assert_eq!(mapping.addr() % huge.bytes().as_usize(), 0);
    assert_eq!(mapping.len(), len);
}

#[test]
fn copies_equal_slice_copies_at_every_offset() {
    let mapping = small();
    let mut plain = vec![0_u8; mapping.len().as_usize()];
    for offset in 0..20 {
        for len in 0..40 {
            let bytes: Vec<u8> = (0..len).map(|i| (offset * 7 + i * 3 + 1) as u8).collect();
            mapping.write(Bytes::new(offset as u64), &bytes);
            plain[offset..offset + len].copy_from_slice(&bytes);
            if len % 5 == 0 {
                mapping.zero(Bytes::new(offset as u64 + 3), Bytes::new(len as u64 / 2));
                plain[offset + 3..offset + 3 + len / 2].fill(0);
            }
            let mut seen = vec![0xAA; plain.len()];
            mapping.read(Bytes::ZERO, &mut seen);
            assert_eq!(seen, plain);
        }
    }
}

#[test]
fn large_zeros_end_where_they_should() {
    let mapping = Mapping::anonymous(Bytes::mib(4), Visibility::PRIVATE).unwrap();
    let mut plain = vec![0xAA_u8; mapping.len().as_usize()];
    let mut seen = plain.clone();
    for (offset, len) in
        [(0, 1 << 20), (64, (1 << 20) - 1), (1, 1 << 20), (4095, (2 << 20) + 63), (63, 3 << 20)]
    {
        plain.fill(0xAA);
        mapping.write(Bytes::ZERO, &plain);
        mapping.zero(Bytes::new(offset as u64), Bytes::new(len as u64));
        plain[offset..offset + len].fill(0);
        mapping.read(Bytes::ZERO, &mut seen);
        assert!(seen == plain, "{len} bytes at {offset}");
    }
}

#[test]
fn a_copy_to_just_behind_its_source_in_the_low_bits_is_whole() {
    const LEN: usize = 3000;
    let source: Vec<u8> = (0..LEN).map(|at| (at * 7) as u8).collect();
    let mut target = vec![0_u8; 3 * LEN];
    for behind in [0, 1, 15, 16, 17, 31, 32, 33] {
        target.fill(0xAA);
        let wanted = source.as_ptr().addr() + behind;
        let at = wanted.wrapping_sub(target.as_ptr().addr()) & 0xfff;
        // SAFETY: source and target have `LEN` bytes each and do not overlap.
        unsafe { racy::copy(target[at..at + LEN].as_mut_ptr(), source.as_ptr(), LEN) };
        assert!(target[at..at + LEN] == source, "{behind} bytes behind");
        let rest = target[..at].iter().chain(&target[at + LEN..]);
        assert!(rest.clone().all(|byte| *byte == 0xAA), "{behind} bytes behind");
    }
}

#[test]
fn copies_equal_slice_copies() {
    let copies: [unsafe fn(*mut u8, *const u8, usize); 2] = [racy::copy, racy::portable_copy];
    let source: Vec<u8> = (0..600).map(|at| at as u8).collect();
    let lens = (0..100).chain(500..530);
    for (len, to, from) in lens.flat_map(|len| (0..81).map(move |n| (len, n / 9, n % 9))) {
        let mut expected = vec![0xAA_u8; 600];
        expected[to..to + len].copy_from_slice(&source[from..from + len]);
        for copy in copies {
            let mut target = vec![0xAA_u8; 600];
            // SAFETY: both ranges are inside vectors of 600 bytes.
            unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
            assert!(target == expected, "{len} bytes from {from} to {to}");
        }
        expected[from..from + len].fill(0);
        let mut target = vec![0xAA_u8; 600];
        target[to..to + len].copy_from_slice(&source[from..from + len]);
        // SAFETY: the range is inside a vector of 600 bytes.
        unsafe { racy::portable_zero(target.as_mut_ptr().add(from), len) };
        assert!(target == expected, "{len} zeros at {from}");
    }
}

#[test]
fn beyond_the_end_is_a_panic_and_no_access() {
    let mapping = small();
    let end = mapping.len();
    mapping.read(end, &mut []);
    for (offset, len) in [(end, 1), (end - Bytes::new(1), 2), (Bytes::new(u64::MAX), 1)] {
        let read = || mapping.read(offset, &mut vec![0; len]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
        let write = || mapping.write(offset, &vec![0; len]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
        let zero = || mapping.zero(offset, Bytes::new(len as u64));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(zero)).is_err());
    }
}

#[test]
fn a_child_neither_reads_nor_unmaps_what_it_did_not_inherit() {
    let (private, ordinary) =
        (small(), Mapping::anonymous(Bytes::new(1), Visibility::ORDINARY).unwrap());
    ordinary.write(Bytes::ZERO, &[7]);
    let mut seen = [0];
    let page = page_size().bytes();
    let mut private = Some(private);
    // SAFETY: the child calls only mmap, munmap, loads and stores.
    let passed = unsafe {
        in_child(|| {
            let Some(lost) = private.take() else { return false };
            let at = lost.as_ptr();
            let forked = lost.is_lost_by_fork() && !ordinary.is_lost_by_fork();
            let free = map_at(at, page.as_usize());
            drop(lost);
            if free {
                at.write_volatile(1); // SIGSEGV if the drop unmapped it
            }
            ordinary.read(Bytes::ZERO, &mut seen);
            forked && free && seen == [7]
        })
    };
    assert!(passed);
    private.as_ref().unwrap().write(Bytes::ZERO, &[1]);
}

#[test]
fn threads_may_race() {
    let mapping = small();
    std::thread::scope(|scope| {
        for value in [0x11_u8, 0x22] {
            let mapping = &mapping;
            scope.spawn(move || {
                let mut seen = [0; 64];
                for _ in 0..1000 {
                    mapping.write(Bytes::ZERO, &[value; 64]);
                    mapping.read(Bytes::ZERO, &mut seen);
                    assert!(seen.iter().all(|byte| [0x11, 0x22].contains(byte)));
                }
            });
        }
    });
}

#[test]
fn ranges_given_back_at_once_are_zero_and_their_neighbours_are_as_before() {
    let page = page_size().bytes();
    let at = |nth: u64| Bytes::new(nth * page.get());
    let mapping = Reserved::new(at(64), false).unwrap();
    let mark = [7; 3];
    for count in [0, 1, 3, 20] {
        mapping.populate(Bytes::ZERO, at(64)).unwrap();
        (0..64).for_each(|nth| mapping.mapping().write(at(nth), &mark));
        let mut ranges: Vec<_> =
            (0..count as u64).map(|nth| (at(3 * nth).as_usize(), at(2))).collect();
        // SAFETY: no reference to these bytes exists.
        let gone = unsafe { mapping.give_back_all(&mut ranges) };
        assert_eq!(gone, count);
        for nth in 0..64 {
            let mut bytes = [1; 3];
            mapping.mapping().read(at(nth), &mut bytes);
            let is_gone = nth < 3 * count as u64 && nth % 3 < 2;
            assert_eq!(bytes, if is_gone { [0; 3] } else { mark }, "page {nth} of {count} ranges");
        }
    }
}

#[test]
fn threads_that_populate_side_by_side_lose_nothing() {
    const THREADS: u64 = 4;
    let page = page_size().bytes();
    let at = |nth: u64| Bytes::new(nth * page.get());
    for round in 0..300 {
        let mapping = Reserved::new(at(THREADS), false).unwrap();
        let begin = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for nth in 0..THREADS {
                let (mapping, begin) = (&mapping, &begin);
                scope.spawn(move || {
                    begin.wait();
                    mapping.populate(at(nth), page).unwrap();
                    mapping.mapping().write(at(nth), &[7]);
                });
            }
        });
        for nth in 0..THREADS {
            let mut byte = [0];
            mapping.mapping().read(at(nth), &mut byte);
            assert_eq!(byte, [7], "page {nth} in round {round}");
        }
    }
}

/// Returns a length of 2 MiB pages that the pool lacks.
pub(super) fn more_than_the_pool() -> Option<(Bytes, PageSize)> {
    let huge = PageSize::new(2 << 20)?;
    let Some(Ok(pool)) = Pool::of(huge).map(|pool| pool.counts()) else {
        println!("skipped: no pool of 2 MiB pages");
        return None;
    };
    // The kernel adds surplus pages before it refuses, so the length is not much greater.
    Some((Pages::new(pool.available() + 64).bytes(huge), huge))
}

#[test]
fn a_part_of_a_file_is_mapped_at_its_alignment_and_shares_its_bytes() {
    let (page, huge) = (page_size(), PageSize::new(64 << 20).unwrap());
    let bytes = |pages: u64| Pages::new(pages).bytes(page);
    let file = MemoryFile::new(bytes(4)).unwrap();
    let whole = Mapping::part_of(file.as_file(), Bytes::ZERO, bytes(4), page).unwrap();
    for align in [page, huge] {
        let part = Mapping::part_of(file.as_file(), bytes(1), bytes(2), align).unwrap();
        assert_eq!((part.addr() % align.bytes().as_usize(), part.len()), (0, bytes(2)));
        part.write(bytes(2) - Bytes::new(1), &[7]);
        let mut byte = [0];
        whole.read(bytes(3) - Bytes::new(1), &mut byte);
        assert_eq!(byte, [7]);
        whole.write(bytes(3) - Bytes::new(1), &[0]);
    }
}
