//! Tests allocations while a tenant is stopped in the middle of a put, and the put's later result.
//!
//! The put reads a page whose second half is unreadable. The fault's handler holds the writer until
//! the test releases it, and then makes that half readable. Order, not time, proves that an
//! allocation did not wait: it returned while the writer was held. The handler is per process, so
//! each test has its own process.
#![allow(unsafe_code)] // Safety: mmap, mprotect and a signal handler; each block says why.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{Block, Namespace, Put, Request, Reserve, ReserveError, Writers};
use glebe::units::{Bytes, Pages};

const GRANULES: u64 = 2;
/// Milliseconds until the writer continues by itself. The test then fails instead of hanging.
const HELD_MAX: usize = 20_000;
const FILL: u8 = 0x5a;
const POISON: u8 = 0xa5;
const KEY: u64 = 7;

static UNREADABLE: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicBool = AtomicBool::new(false);
static RELEASE: AtomicBool = AtomicBool::new(false);
static GONE_ON: AtomicBool = AtomicBool::new(false);

fn page_len() -> usize {
    page_size().bytes().as_usize()
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's `info` is valid; handlers may make these calls.
    unsafe {
        let half = UNREADABLE.load(Ordering::Relaxed);
        let len = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        if half == 0 || !(half..half + len).contains(&((*info).si_addr() as usize)) {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        }
        HELD.store(true, Ordering::SeqCst);
        let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for _ in 0..HELD_MAX {
            if RELEASE.load(Ordering::SeqCst) {
                break;
            }
            libc::nanosleep(&millisecond, ptr::null_mut());
        }
        GONE_ON.store(true, Ordering::SeqCst);
        libc::mprotect(half as *mut libc::c_void, len, libc::PROT_READ);
    }
}

fn install() {
    // SAFETY: `on_fault` matches SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
    }
}

/// A page of source bytes across two pages, the second unreadable.
struct Trap {
    at: usize,
}

impl Trap {
    fn set() -> Self {
        install();
        let len = page_len();
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, written before its second page is closed.
        let at = unsafe {
            let at = libc::mmap(ptr::null_mut(), 2 * len, read_write, private, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            ptr::write_bytes(at.cast::<u8>(), FILL, 2 * len);
            assert_eq!(libc::mprotect(at.byte_add(len), len, libc::PROT_NONE), 0);
            at as usize
        };
        for flag in [&HELD, &RELEASE, &GONE_ON] {
            flag.store(false, Ordering::SeqCst);
        }
        UNREADABLE.store(at + len, Ordering::SeqCst);
        Self { at }
    }

    fn source(&self) -> &[u8] {
        let start = self.at + page_len() / 2;
        // SAFETY: the mapping is live; the handler makes its end readable.
        unsafe { std::slice::from_raw_parts(start as *const u8, page_len()) }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        UNREADABLE.store(0, Ordering::SeqCst);
        // SAFETY: `set` mapped this range, and every borrow has ended.
        unsafe { libc::munmap(self.at as *mut libc::c_void, 2 * page_len()) };
    }
}

fn reserve(writers: Option<Writers>) -> Reserve {
    reserve_of(GRANULES, writers)
}

fn reserve_of(granules: u64, writers: Option<Writers>) -> Reserve {
    let len = Bytes::new(granules * Bytes::mib(2).get());
    let contig = Contig::options().source(Source::Plain).build(len).expect("ordinary memory");
    let builder = Reserve::options();
    let builder = match writers {
        Some(writers) => with_writers(builder, writers),
        None => builder,
    };
    builder.build_on(contig).expect("whole granules")
}

fn restartable() -> Option<Reserve> {
    let reserve = reserve(None);
    if let Some(why) = reserve.why_counted() {
        println!("skipped: {why}");
        return None;
    }
    Some(reserve)
}

fn any(pages: u64) -> Request {
    Request::new(Pages::new(pages)).any()
}

struct Released;

impl Drop for Released {
    fn drop(&mut self) {
        RELEASE.store(true, Ordering::SeqCst);
    }
}

fn while_held<T>(pool: &Namespace, body: impl FnOnce() -> T) -> (Put, T) {
    while_held_by(&Trap::set(), pool, body)
}

fn while_held_by<T>(trap: &Trap, pool: &Namespace, body: impl FnOnce() -> T) -> (Put, T) {
    thread::scope(|scope| {
        let _released = Released;
        let writer = scope.spawn(|| pool.put(1, KEY, trap.source()).unwrap());
        while !HELD.load(Ordering::SeqCst) {
            assert!(!writer.is_finished(), "the put never read its source");
            thread::yield_now();
        }
        let result = body();
        RELEASE.store(true, Ordering::SeqCst);
        (writer.join().unwrap(), result)
    })
}

fn poisoned(mut block: Block) -> Block {
    block.bytes_mut().unwrap().fill(POISON);
    block
}

fn assert_untouched<'a>(blocks: impl IntoIterator<Item = &'a Block>) {
    for block in blocks {
        let stray = block.bytes().unwrap().iter().position(|byte| *byte != POISON);
        assert_eq!(stray, None, "a stray write into {:?}", block.extent());
    }
}

fn assert_writer_is_held() {
    assert!(!GONE_ON.load(Ordering::SeqCst), "first class waited for the writer");
}

fn assert_found(pool: &Namespace, put: Put) {
    let mut buf = vec![0; page_len()];
    let found = pool.get(1, KEY, &mut buf).unwrap();
    assert_eq!(found, put == Put::Stored, "after {put:?}");
    assert!(!found || buf.iter().all(|byte| *byte == FILL));
}

#[test]
fn the_whole_reserve_is_taken_from_under_a_stopped_writer() {
    glebe_testing::alone!();
    let Some(reserve) = restartable() else { return };
    let pool = reserve.page_cache().namespace("stopped").unwrap();
    let all = reserve.len().get();
    let (put, block) = while_held(&pool, || {
        let block = reserve.alloc(any(all)).unwrap();
        assert_writer_is_held();
        poisoned(block)
    });
    assert!(matches!(put, Put::Rejected(_)), "{put:?}");
    assert_untouched([&block]);
    assert_found(&pool, put);
    let stats = reserve.stats();
    assert_eq!((stats.recalled, stats.rejected_recalled, stats.barriers), (1, 1, 1), "{stats}");
    drop(block);
    reserve.stats().check().unwrap();
}

#[test]
fn memory_goes_and_other_memory_comes_under_a_stopped_writer() {
    glebe_testing::alone!();
    let granule = Bytes::mib(2);
    for comes_again in [false, true] {
        let options = Contig::options().source(Source::Plain);
        let builder = Reserve::options().room(granule + granule);
        let reserve = builder.memory(options).build(granule + granule).expect("ordinary memory");
        if let Some(why) = reserve.why_counted() {
            println!("skipped: {why}");
            return;
        }
        let pool = reserve.page_cache().namespace("stopped").unwrap();
        // Tenants and `shrink` use the highest pages first, so `shrink` removes the writer's page.
        let (put, block) = while_held(&pool, || {
            assert_eq!(reserve.shrink(granule).unwrap().len, granule);
            assert_writer_is_held();
            comes_again.then(|| {
                reserve.grow(granule).unwrap();
                assert_writer_is_held();
                poisoned(reserve.alloc(any(reserve.len().get())).unwrap())
            })
        });
        assert_eq!(reserve.stats().recalled, 1, "the writer was elsewhere");
        assert_untouched(&block);
        // Unless a block takes all memory, the put uses another page.
        assert_eq!(put == Put::Stored, !comes_again, "{put:?}");
        assert_found(&pool, put);
        drop(block);
        reserve.stats().check().unwrap();
    }
}

#[test]
fn small_blocks_are_taken_from_under_a_stopped_writer() {
    glebe_testing::alone!();
    let Some(reserve) = restartable() else { return };
    let pool = reserve.page_cache().namespace("stopped").unwrap();
    let (put, blocks) = while_held(&pool, || {
        let mut blocks = Vec::new();
        // One of these blocks has the writer's page.
        while let Ok(block) = reserve.alloc(any(7)) {
            blocks.push(poisoned(block));
        }
        while let Ok(block) = reserve.alloc(any(1)) {
            blocks.push(poisoned(block));
        }
        assert_writer_is_held();
        blocks
    });
    assert_eq!(blocks.iter().map(|block| block.pages().get()).sum::<u64>(), reserve.len().get());
    assert!(matches!(put, Put::Rejected(_)), "{put:?}");
    assert_untouched(&blocks);
    assert_found(&pool, put);
    let stats = reserve.stats();
    assert_eq!((stats.recalled, stats.rejected_recalled, stats.barriers), (1, 1, 1), "{stats}");
    drop(blocks);
    reserve.stats().check().unwrap();
}

#[test]
fn a_stopped_writer_beside_a_block_puts_its_page_elsewhere() {
    glebe_testing::alone!();
    let Some(reserve) = restartable() else { return };
    let pool = reserve.page_cache().namespace("stopped").unwrap();
    let granule = reserve.len().get() / GRANULES;
    // Tenants use the highest pages first, so this block does not include the writer's page.
    let (put, block) = while_held(&pool, || {
        let block = reserve.alloc(any(granule + granule / 2)).unwrap();
        assert_writer_is_held();
        poisoned(block)
    });
    assert_eq!(put, Put::Stored);
    assert_untouched([&block]);
    assert_found(&pool, put);
    let stats = reserve.stats();
    let counts = (stats.stored, stats.recalled, stats.rejected_recalled, stats.live.get());
    assert_eq!(counts, (1, 1, 1, 1), "{stats}");
    stats.check().unwrap();
}

#[test]
fn counted_writers_are_passed_by_or_reported() {
    glebe_testing::alone!();
    let reserve = reserve_of(3, Some(Writers::Counted));
    let pool = reserve.page_cache().namespace("stopped").unwrap();
    let granule = reserve.len().get() / 3;
    let mut held: Vec<_> = (0..3).map(|_| reserve.alloc(any(granule)).unwrap()).collect();
    // Leaves the writer only this granule.
    drop(held.remove(1));
    let (put, block) = while_held(&pool, || {
        drop(held.remove(1));
        let both = reserve.alloc(any(2 * granule).no_wait());
        assert!(matches!(both, Err(ReserveError::WouldWait)), "{both:?}");
        for request in [any(granule), any(3), any(1)] {
            drop(poisoned(reserve.alloc(request.no_wait()).unwrap()));
        }
        let beside = reserve.alloc(any(granule)).unwrap();
        assert_eq!(beside.extent().start(), 2 * granule);
        assert_writer_is_held();
        poisoned(beside)
    });
    assert_eq!(put, Put::Stored);
    assert_untouched([&block]);
    assert_found(&pool, put);
    let stats = reserve.stats();
    assert_eq!((stats.waited_for_writer, stats.recalled, stats.alloc_failures), (0, 0, 0));
    stats.check().unwrap();
}

#[test]
fn first_class_waits_for_a_counted_writer_where_nothing_else_is_free() {
    glebe_testing::alone!();
    let reserve = reserve(Some(Writers::Counted));
    let pool = reserve.page_cache().namespace("stopped").unwrap();
    let trap = Trap::set(); // must outlive the taker's look at its flags
    let taken = {
        let (reserve, all) = (reserve.clone(), reserve.len().get());
        let take = move || {
            let block = reserve.alloc(any(all)).unwrap();
            assert!(GONE_ON.load(Ordering::SeqCst), "first class did not wait for the writer");
            poisoned(block)
        };
        let (put, taken) = while_held_by(&trap, &pool, || {
            let taken = thread::spawn(take);
            // A waiting allocation keeps tenants out, so 100 refused puts in a row show that it
            // waits.
            let mut refused = 0;
            while refused < 100 {
                let put = pool.put(2, refused, &vec![1; page_len()]).unwrap();
                refused = if put == Put::Stored { 0 } else { refused + 1 };
                thread::sleep(Duration::from_millis(1));
            }
            taken
        });
        println!("the put gave {put:?}");
        taken.join().unwrap()
    };
    assert_untouched([&taken]);
    assert_eq!(reserve.stats().waited_for_writer, 1);
    drop(taken);
    reserve.stats().check().unwrap();
}
