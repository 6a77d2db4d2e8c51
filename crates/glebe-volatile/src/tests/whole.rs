//! Tests huge pages of the *tag* engine that the kernel splits or takes while marked.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Returns two huge pages, and the base pages of each.
fn make() -> Option<(Region, u64)> {
    let region = match Region::options().engine(Engine::Tag).huge(true).build(bytes(1)) {
        Ok(one) => Region::options().engine(Engine::Tag).huge(true).build(one.len() + one.len()),
        Err(error) => Err(error),
    };
    let region = match region {
        Ok(region) => region,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let each = region.granule().pages_down(page_size()).get();
    write_all(&region);
    if !in_huge(&region) {
        println!("skipped: memory is too fragmented, or the kernel tells no huge pages");
        return None;
    }
    Some((region, each))
}

const ZEROS: u64 = 7;

fn write_all(region: &Region) {
    fill(region, 0..region.len().pages_down(page_size()).get());
    region.write(bytes(ZEROS), &vec![0; bytes(1).as_usize()]).unwrap();
}

fn in_huge(region: &Region) -> bool {
    let pagemap = glebe_os::internal::sys::memory::pagemap::Pagemap::open().unwrap();
    pagemap.huge_bytes(region.addr(), region.len()).is_ok_and(|huge| huge == region.len())
}

fn mark(region: &Region) {
    region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
}

/// Retries, because the kernel joins pages only if nobody else uses them.
fn mark_in_huge(region: &Region) -> bool {
    for _ in 0..20 {
        write_all(region);
        mark(region);
        if in_huge(region) {
            return true;
        }
        let _ = unmark(region);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    write_all(region);
    assert!(!join(region), "the kernel joins the pages that the region left as they were");
    println!("skipped: the kernel makes no huge page of small ones now");
    false
}

fn join(region: &Region) -> bool {
    for advice in [Advice::HugePage, Advice::Collapse, Advice::NoHugePage] {
        // SAFETY: the region's own memory; contents stay as they are.
        let _ = unsafe { advise(region.addr(), region.len(), advice) };
    }
    in_huge(region)
}

fn unmark(region: &Region) -> Purged {
    region.unmark(Bytes::ZERO..region.len()).unwrap()
}

fn expect_all(region: &Region, lost: &[Extent]) {
    let zeros = extent(ZEROS, 1);
    let mut gone = lost.to_vec();
    gone.push(zeros);
    expect(region, 0..region.len().pages_down(page_size()).get(), &gone);
}

fn touch(region: &Region, page: u64) {
    // SAFETY: the byte is inside the region.
    let word = unsafe { region.as_ptr().add(bytes(page).as_usize()).read_volatile() };
    assert_eq!(word, 0);
}

#[test]
fn a_mark_leaves_all_words() {
    let Some((region, each)) = make() else { return };
    mark(&region);
    let mut word = [0; 8];
    for page in [0, 1, each - 1, each, each + 1] {
        // SAFETY: the word is inside the region.
        let at = unsafe { region.as_ptr().add(bytes(page).as_usize()) };
        // SAFETY: as above; nobody writes the word.
        unsafe { at.copy_to(word.as_mut_ptr(), word.len()) };
        assert_eq!(word, contents(page, 0)[..8], "page {page} has a tag of its own");
    }
    assert!(unmark(&region).is_empty());
    expect_all(&region, &[]);
}

#[test]
fn what_a_split_huge_page_lost_is_told_page_by_page() {
    let Some((region, each)) = make() else { return };
    for lost in [
        vec![extent(3, 2)],
        vec![extent(0, 1)],
        vec![extent(0, 2), extent(each - 1, 1), extent(each + 5, 1)],
        vec![extent(5, 1), extent(each, each)],
        vec![extent(0, 2 * each)],
    ] {
        if !mark_in_huge(&region) {
            return;
        }
        lost.iter().for_each(|run| purge(&region, run.start(), run.len()));
        touch(&region, lost[0].start());
        assert_eq!(unmark(&region).runs(), lost);
        expect_all(&region, &lost);
        assert!(unmark(&region).is_empty());
        region.stats().check().unwrap();
    }
}

#[test]
fn a_read_of_marked_memory_sees_all_that_is_there_and_no_more() {
    let Some((region, each)) = make() else { return };
    mark(&region);
    let mut two = vec![0; bytes(2).as_usize()];
    for first in [0, each - 1, each, each + 1] {
        region.try_read(bytes(first), &mut two).unwrap();
        assert_eq!(two[..8], contents(first, 0)[..8]);
        assert_eq!(two[bytes(1).as_usize()..], contents(first + 1, 0));
    }
    purge(&region, 3, 1);
    for touched in [false, true] {
        if touched {
            touch(&region, 3);
        }
        for (first, lost) in [(0, None), (2, Some(3)), (3, Some(3)), (4, None)] {
            let offset = region.try_read(bytes(first), &mut two).err().map(|error| match error {
                Error::Purged { offset } => offset,
                other => panic!("{other}"),
            });
            assert_eq!(offset, lost.map(bytes), "from page {first}");
        }
    }
    assert_eq!(region.drop_now(Bytes::ZERO..region.granule()).unwrap(), region.granule());
    assert_eq!(unmark(&region).runs(), [extent(0, each)]);
    expect_all(&region, &[extent(0, each)]);
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_the_kernel_takes_meanwhile_is_told_exactly() {
    let Some((region, each)) = make() else { return };
    let done = AtomicBool::new(false);
    let (mut lost_pages, mut kept_pages) = (0, 0);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            let mut nth: u64 = 0;
            while !done.load(Ordering::Relaxed) {
                nth += 1;
                let (at, len) = match nth % 3 {
                    0 => (0, 2 * each),
                    1 => (each, each),
                    _ => (nth * 31 % each, 1),
                };
                let at = region.addr() + bytes(at).as_usize();
                // SAFETY: only marked contents change.
                unsafe {
                    let _ = advise(at, bytes(len), Advice::PageOut);
                }
            }
        });
        for round in 0..60_u64 {
            write_all(&region);
            mark(&region);
            for _ in 0..round % 4 {
                std::thread::yield_now();
            }
            let purged = unmark(&region);
            expect_all(&region, purged.runs());
            lost_pages += purged.pages().get();
            kept_pages += 2 * each - purged.pages().get();
        }
    });
    println!("{lost_pages} pages lost, {kept_pages} kept");
    assert!(kept_pages > 0);
}
