//! Tests views at the kernel's limit on mappings, in forked children, and in threads.
//!
//! This is one test, since the first part leaves no room for other mappings.
#![allow(unsafe_code)] // Safety: own mappings, and a question about addresses.

use std::sync::Arc;
use std::thread;

use glebe_os::extent::Extent;
use glebe_os::internal::sys::memory::map_count::{map_count, max_map_count};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_vmap::{Error, MemFile, Space, View};

use glebe_testing::stressed::{in_child, ChildEnd};

/// Highest `vm.max_map_count` that the test accepts, because more mappings would take too long.
const LIMIT_MAX: u64 = 1 << 17;

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

/// Returns every second page in reverse, so that each needs a mapping.
fn scattered(pages: u64) -> Vec<Extent> {
    (0..pages).rev().map(|n| Extent::new(2 * n, 1).unwrap()).collect()
}

#[test]
fn process_wide() {
    glebe_testing::alone!();
    at_the_kernels_limit_a_view_is_refused_and_nothing_is_lost();
    more_than_half_of_the_limit_is_no_views();
    a_child_has_no_view_and_is_told_so();
    threads_make_and_drop_views_of_the_same_pages();
}

fn at_the_kernels_limit_a_view_is_refused_and_nothing_is_lost() {
    let limit = max_map_count().unwrap();
    if limit > LIMIT_MAX {
        return println!("skipped: vm.max_map_count is {limit}");
    }
    let file = Arc::new(MemFile::new(bytes(2 * limit)).unwrap());
    let space = Space::new(bytes(4 * limit)).unwrap();
    let before = map_count().unwrap();
    // Other mappings use just over half of the limit.
    let others = Fillers::new(limit / 2 + 4 - before);
    let half = scattered(limit / 2 - 1);
    let error = space.view(&file, &half).unwrap_err();
    let text = error.to_string();
    match error {
        Error::MapCount { asked, used, limit: told, why } => {
            assert_eq!((asked, told), (half.len() as u64 + 1, limit));
            assert!(used <= limit && used + asked > limit, "{text}");
            assert_eq!(why.kind(), std::io::ErrorKind::OutOfMemory);
        }
        other => panic!("{other}"),
    }
    assert!(text.contains("vm.max_map_count"), "{text}");
    assert_eq!((space.usage().mappings, space.usage().free), (0, bytes(4 * limit)));
    let small = space.view(&file, &scattered(8)).unwrap();
    assert_eq!(small.len(), bytes(8));
    drop(others);
    drop(space.view(&file, &half[..half.len() - 16]).unwrap());
    space.flush().unwrap();
    drop(small);
    drop(space);
    assert!(map_count().unwrap() <= before);
}

/// Mappings that cannot merge.
struct Fillers {
    addr: usize,
    len: usize,
}

impl Fillers {
    fn new(mappings: u64) -> Self {
        let page = page_size().bytes().as_usize();
        let len = mappings as usize * page;
        // SAFETY: the mapping is new, and nothing touches it.
        unsafe {
            let none = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), len, none.0, none.1, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            for n in (0..mappings as usize).step_by(2) {
                let odd = at.byte_add(n * page);
                assert_eq!(libc::mprotect(odd, page, libc::PROT_READ), 0, "{n}");
            }
            Self { addr: at.expose_provenance(), len }
        }
    }
}

impl Drop for Fillers {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and it has no references.
        unsafe {
            let at = std::ptr::with_exposed_provenance_mut(self.addr);
            assert_eq!(libc::munmap(at, self.len), 0);
        }
    }
}

fn more_than_half_of_the_limit_is_no_views() {
    let limit = max_map_count().unwrap();
    if limit > LIMIT_MAX {
        return println!("skipped: vm.max_map_count is {limit}");
    }
    let file = Arc::new(MemFile::new(bytes(2 * limit)).unwrap());
    let (one, two) = (bytes(limit), bytes(limit));
    let [one, two] = [one, two].map(|len| Space::new(len).unwrap());
    let first = one.view(&file, &scattered(limit / 2 - 100)).unwrap();
    let error = two.view(&file, &scattered(200)).unwrap_err();
    assert!(matches!(error, Error::ViewLimit { limit: of, .. } if of == limit / 2), "{error}");
    drop(first);
    one.flush().unwrap();
    two.view(&file, &scattered(200)).unwrap();
}

fn a_child_has_no_view_and_is_told_so() {
    let file = Arc::new(MemFile::new(bytes(8)).unwrap());
    let space = Space::new(bytes(64)).unwrap();
    let view = space.view(&file, &scattered(4)).unwrap();
    view.write(Bytes::ZERO, b"parent").unwrap();
    let (mut other, free) = (Some(space.view(&file, &scattered(2)).unwrap()), space.usage().free);
    let lost = in_child(|| {
        let mut buf = [0; 6];
        let refused = [
            view.read(Bytes::ZERO, &mut buf),
            view.write(Bytes::ZERO, b"child!"),
            space.flush(),
            space.view(&file, &[]).map(drop),
        ];
        // The child has nothing mapped there, even if it bypasses the checks.
        let at = view.as_ptr().cast();
        // SAFETY: MADV_NORMAL only tests whether the page is mapped.
        let unmapped =
            unsafe { libc::madvise(at, page_size().bytes().as_usize(), libc::MADV_NORMAL) } == -1;
        drop(other.take());
        let is_lost = unmapped && refused.iter().all(|it| matches!(it, Err(Error::Forked)));
        u8::from(!is_lost)
    });
    assert_eq!(lost, ChildEnd::Exit(0));
    let mut buf = [0; 6];
    view.read(Bytes::ZERO, &mut buf).unwrap();
    assert_eq!((&buf, space.usage().free), (b"parent", free));
}

fn threads_make_and_drop_views_of_the_same_pages() {
    const THREADS: u64 = 4;
    let file = Arc::new(MemFile::new(bytes(64)).unwrap());
    let space = Space::options().lazy_max(bytes(20)).build(bytes(48)).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (space, file) = (space.clone(), Arc::clone(&file));
            scope.spawn(move || {
                for round in 0..500_u64 {
                    let page = |n: u64| Extent::new(16 * thread + (round + 5 * n) % 16, 1).unwrap();
                    let pages: Vec<Extent> = (0..1 + round % 3).map(page).collect();
                    let view = space.view(&file, &pages).unwrap();
                    check(&view, &pages, thread << 32 | round);
                }
            });
        }
    });
    space.flush().unwrap();
    assert_eq!((space.usage().mappings, space.usage().free), (0, bytes(48)));
}

fn check(view: &View, pages: &[Extent], value: u64) {
    let word = |n: usize| value.rotate_left(8) ^ pages[n].start();
    for n in 0..pages.len() {
        view.write(bytes(n as u64), &word(n).to_le_bytes()).unwrap();
    }
    for n in 0..pages.len() {
        let mut seen = [0; 8];
        view.read(bytes(n as u64), &mut seen).unwrap();
        assert_eq!(u64::from_le_bytes(seen), word(n));
    }
}
