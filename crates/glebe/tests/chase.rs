//! Tests recalls of pages from a tenant that stores into them without a pause.
//!
//! A first-class client takes the tenant's only pages while the tenant copies from a source larger
//! than the CPU caches. If a copy continues after the recall, the copy writes a page's last word
//! last, so the client marks and checks last words.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{Request, Reserve, Writers};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::{slowed, storm};

use glebe_testing::stressed::Stop;

const LEFT: u64 = 8;
const SOURCE_LEN: Bytes = Bytes::mib(64);
/// Checks of each block; a copy that outlives the recall may end after the first check.
const LOOKS: usize = 4;
const USUAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

fn page_len() -> usize {
    page_size().bytes().as_usize()
}

fn last_words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(page_len()).map(|page| &page[page.len() - size_of::<u64>()..])
}

fn chase(writers: Option<Writers>) {
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
    let builder = Reserve::options();
    let builder = match writers {
        Some(writers) => with_writers(builder, writers),
        None => builder,
    };
    let reserve = builder.build_on(contig).unwrap();
    let kept = Request::new(Pages::new(reserve.len().get() - LEFT)).any();
    let kept = reserve.alloc(kept).unwrap();
    let pool = reserve.page_cache().namespace("chase").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            // Fills the source with another byte than zero, because the kernel would map one shared
            // page for zeros.
            let bytes = vec![0x5a; SOURCE_LEN.as_usize()];
            let pages = bytes.chunks_exact(page_len()).cycle();
            for (index, page) in (0..).zip(pages) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                pool.put(1, index % (2 * LEFT), page).unwrap();
            }
        });
        take_and_look(&reserve);
    });
    drop(kept);
    let stats = reserve.stats();
    println!("stored {}, recalled {}, blocks {}", stats.stored, stats.recalled, stats.allocs);
    stats.check().unwrap();
    assert!(stats.recalled > 0, "{stats}");
}

fn take_and_look(reserve: &Reserve) {
    let left = Request::new(Pages::new(LEFT)).any();
    let (begin, usual) = (Instant::now(), storm(USUAL));
    for number in 1_u64.. {
        // Waits for a recall, because on a busy machine the tenant may not run at once.
        let is_met = || reserve.stats().recalled > 0 || begin.elapsed() >= usual + slowed(PATIENCE);
        if begin.elapsed() >= usual && is_met() {
            break;
        }
        let mut block = reserve.alloc(left).unwrap();
        let mark = number.to_ne_bytes();
        for page in block.bytes_mut().unwrap().chunks_exact_mut(page_len()) {
            page[page_len() - mark.len()..].copy_from_slice(&mark);
        }
        for _ in 0..LOOKS {
            let stray = last_words(block.bytes().unwrap()).position(|word| *word != mark);
            assert_eq!(stray, None, "a stray write into a page of block {number}");
            spin(Duration::from_micros(1));
        }
        drop(block);
        spin(Duration::from_micros(20));
    }
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[test]
fn pages_are_taken_from_under_a_running_writer() {
    chase(None);
}

#[test]
fn pages_are_taken_from_under_a_running_counted_writer() {
    chase(Some(Writers::Counted));
}
