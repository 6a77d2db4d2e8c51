//! Tests of registrations with CUDA, with a runtime that needs no GPU and checks each call.

mod ends;
mod fake;
mod found;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fake::Fake;
use glebe::contig::{Contig, Source};
use glebe::cuda::{CudaError, CudaFailure, Registrable, Registration, RegistrationOptions};
use glebe::extent::Extent;
use glebe::page_size;
use glebe::reserve::{Request, Reserve, ReserveError};
use glebe::units::{Bytes, PageSize, Pages};
use glebe_testing::stressed::{Random, Stop};
use glebe_testing::time::storm;
use glebe_testing::turn::{Turn, POOL};

const MIB: Bytes = Bytes::mib(1);
/// Tests check for at least this long that nothing happens.
const MOMENT: Duration = Duration::from_millis(50);
const NOW: Option<Duration> = Some(Duration::ZERO);
/// A test that waits longer fails.
const SOON: Option<Duration> = Some(Duration::from_secs(60));
const EVER: Duration = Duration::from_secs(1000);

fn plain() -> glebe::contig::Options {
    Contig::options().source(Source::Plain)
}

fn reserve(mib: u64) -> Reserve {
    Reserve::options().memory(plain()).build(Bytes::mib(mib)).unwrap()
}

fn pieces(len: Bytes) -> RegistrationOptions {
    Registration::options().piece(len)
}

/// Returns options of pieces that are so many that no machine registers all of them soon.
fn small_pieces() -> RegistrationOptions {
    pieces(Pages::new(16).bytes(page_size()))
}

fn pages(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

fn in_pages(len: Bytes) -> u64 {
    len.pages_down(page_size()).get()
}

fn base(reserve: &Reserve) -> usize {
    reserve.contig().mapping().addr()
}

fn refused<T: std::fmt::Debug>(done: Result<T, CudaError>) -> CudaFailure {
    match done {
        Err(CudaError::Refused(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_memory_is_registered_once_piece_by_piece_with_progress() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(16);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    let (mut ready, mut seen) = (Bytes::ZERO, Vec::new());
    while ready < registration.total() {
        ready = registration.progress(ready, None).unwrap();
        seen.push(ready);
    }
    assert!(seen.is_sorted_by(|one, other| one < other), "{seen:?}");
    assert_eq!((ready, registration.ready()), (Bytes::mib(16), Bytes::mib(16)));
    assert!(registration.wait_all(NOW).unwrap());
    let ranges = fake.ranges();
    assert_eq!(ranges[0].0, base(&reserve));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].0 + pair[0].1.as_usize(), pair[1].0, "in order, without gaps");
    }
    assert!(ranges[1..ranges.len() - 1].iter().all(|(_, len)| *len == MIB), "{ranges:?}");
    assert!(matches!(ranges.len(), 16 | 17), "{ranges:?}");
    assert_eq!(fake.number("fake_most_registering"), 1);
    assert_eq!(fake.number("fake_relaxed"), 1);
    registration.close().unwrap();
    assert_eq!((fake.number("fake_count"), registration.ready()), (0, Bytes::ZERO));
    registration.close().unwrap();
    assert!(matches!(registration.wait_all(None), Err(CudaError::Closed)));
    assert!(matches!(registration.resume(), Err(CudaError::Closed)));
}

#[test]
fn pages_that_are_waited_for_come_next_and_are_usable_at_once() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 20_000);
    let reserve = reserve(16);
    let registration = small_pieces().register(fake.runtime(), &reserve).unwrap();
    assert!(!registration.wait_all(NOW).unwrap());
    let last = pages(in_pages(Bytes::mib(16)) - 40, 36);
    assert!(registration.wait(last, None).unwrap());
    let start = base(&reserve) + Pages::new(last.start()).bytes(page_size()).as_usize();
    for page in 0..36 {
        let at = start + page * page_size().bytes().as_usize();
        assert!(fake.is_registered(at as *const u8, 1), "page {page}");
    }
    let ready = registration.ready();
    assert!(ready < Bytes::mib(8), "{ready}");
    assert!(!registration.wait_all(NOW).unwrap());
}

#[test]
fn an_error_names_the_piece_and_leaves_the_others() {
    let Some(fake) = Fake::new() else { return };
    fake.fail("fake_fail_register", 3, 2);
    let reserve = reserve(16);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    let failure = refused(registration.wait_all(None));
    let (offset, len) = failure.piece.unwrap();
    assert_eq!((failure.call, failure.code, len), ("cudaHostRegister", 2, MIB));
    assert_eq!(
        failure.to_string(),
        format!(
            "cudaHostRegister failed for the piece of {} bytes at offset {}: out of memory (error \
             2)",
            MIB.get(),
            offset.get()
        )
    );
    assert_eq!((registration.ready(), fake.number("fake_count")), (offset, 2));
    assert!(registration.wait(pages(0, in_pages(offset)), None).unwrap());
    assert_eq!(refused(registration.wait(pages(in_pages(offset), 1), None)), failure);
    assert_eq!(refused(registration.progress(offset, None)), failure);
    thread::sleep(MOMENT);
    assert_eq!(fake.number("fake_registers"), 3, "it stops");
    registration.resume().unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(registration.ready(), Bytes::mib(16));
}

/// Waits until all pieces that were begun are registered.
fn settle(fake: &Fake) {
    thread::sleep(MOMENT);
    while fake.number("fake_count") != fake.number("fake_registers") {
        thread::sleep(MOMENT);
    }
}

#[test]
fn a_cancelled_registration_keeps_its_pieces_and_continues() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 20_000);
    let reserve = reserve(16);
    let registration = small_pieces().register(fake.runtime(), &reserve).unwrap();
    registration.wait(pages(0, 1), None).unwrap();
    registration.cancel();
    settle(&fake);
    let (ready, count) = (registration.ready(), fake.number("fake_count"));
    assert!(ready < Bytes::mib(16), "{ready}");
    match registration.wait_all(None) {
        Err(CudaError::Cancelled { ready: said, total }) => {
            assert_eq!((said, total), (ready, Bytes::mib(16)));
        }
        other => panic!("{other:?}"),
    }
    thread::sleep(MOMENT);
    assert_eq!((registration.ready(), fake.number("fake_registers")), (ready, count));
    assert!(registration.wait(pages(0, 1), None).unwrap());
    fake.set("fake_delay_us", 0);
    registration.resume().unwrap();
    assert!(registration.wait_all(SOON).unwrap());
}

#[test]
fn other_parts_of_a_reserve_are_in_use_meanwhile() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 20_000);
    let reserve = reserve(16);
    let registration = small_pieces().register(fake.runtime(), &reserve).unwrap();
    let pool = reserve.page_cache().namespace("cache").unwrap();
    let page = vec![7; page_size().bytes().as_usize()];
    for index in 0..100 {
        let mut block = reserve.alloc(Request::new(Pages::new(64)).any()).unwrap();
        block.bytes_mut().unwrap().fill(9);
        pool.put(1, index, &page).unwrap();
        assert!(block.bytes().unwrap().iter().all(|byte| *byte == 9));
    }
    assert!(!registration.wait_all(NOW).unwrap(), "pieces are registered meanwhile");
}

#[test]
fn a_pause_is_kept_and_a_close_does_not_wait_for_it() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(16);
    let registration = pieces(MIB).pause(EVER).register(fake.runtime(), &reserve).unwrap();
    registration.wait(pages(0, 1), None).unwrap();
    assert!(!registration.wait_all(Some(MOMENT)).unwrap());
    assert_eq!(
        registration.progress(registration.ready(), Some(MOMENT)).unwrap(),
        registration.ready()
    );
    assert_eq!(fake.number("fake_count"), 1);
    registration.close().unwrap();
}

#[test]
fn aligned_blocks_lie_in_one_piece() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(16);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    let mut kept = Vec::new();
    for len in [1, 3, 16, 100, in_pages(MIB)].repeat(3) {
        let align = Pages::new(len.next_power_of_two());
        let block = reserve.alloc(Request::new(Pages::new(len)).align(align).any()).unwrap();
        assert!(registration.is_one_piece(block.extent()), "{}", block.extent());
        registration.wait(block.extent(), None).unwrap();
        let len = block.bytes().unwrap().len();
        assert!(fake.is_registered(block.as_ptr(), len));
        kept.push(block);
    }
    let all = pages(0, in_pages(Bytes::mib(16)));
    assert!(!registration.is_one_piece(all));
    assert!(!registration.is_one_piece(pages(all.end(), 1)));
}

#[test]
fn a_registered_reserve_keeps_its_length() {
    let Some(fake) = Fake::new() else { return };
    let options = Reserve::options().memory(plain()).room(Bytes::mib(16));
    let reserve = options.build(Bytes::mib(8)).unwrap();
    let registration = Registration::new(fake.runtime(), &reserve).unwrap();
    let another = reserve.clone();
    for resized in [reserve.grow(Bytes::mib(2)), another.shrink(Bytes::mib(2))] {
        match resized {
            Err(why @ ReserveError::FixedLen { .. }) => {
                assert!(why.to_string().contains("registered with a device"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(registration.wait_all(SOON).unwrap());
    registration.close().unwrap();
    reserve.grow(Bytes::mib(2)).unwrap();
    reserve.shrink(Bytes::mib(2)).unwrap();
}

#[test]
fn only_pages_with_memory_are_registered() {
    let Some(fake) = Fake::new() else { return };
    let options = Reserve::options().memory(plain()).room(Bytes::mib(32));
    let reserve = options.build(Bytes::mib(8)).unwrap();
    let block = |mib| {
        let request = Request::new(Bytes::mib(mib).pages_down(page_size())).any();
        reserve.alloc(request).unwrap()
    };
    let (below, last) = (block(6), block(2));
    drop(below);
    reserve.shrink(Bytes::mib(4)).unwrap();
    let registration = pieces(Bytes::mib(8)).register(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(registration.total(), Bytes::mib(4));
    assert!(fake.is_registered(last.as_ptr(), MIB.as_usize()));
    let gaps = [0, 2, 4, 6].map(|mib| pages(in_pages(Bytes::mib(mib)), 1));
    let waited = gaps.map(|gap| registration.wait(gap, None));
    let outside = |done: &Result<bool, CudaError>| matches!(done, Err(CudaError::BadRange { .. }));
    assert_eq!(waited.iter().filter(|done| outside(done)).count(), 2, "{waited:?}");
}

#[test]
fn the_thread_uses_the_callers_device_and_the_caller_keeps_it() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(4);
    fake.set("cudaSetDevice", 2);
    let registration = Registration::new(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(fake.number_of("fake_device", 0), 2);
    registration.close().unwrap();
    assert_eq!(fake.number_of("fake_synchronizes", 2), 1);
    let options = Registration::options().devices([3, 1]);
    let registration = options.register(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(fake.number_of("fake_device", 0), 3);
    registration.close().unwrap();
    assert_eq!([1, 2, 3].map(|nth| fake.number_of("fake_synchronizes", nth)), [1, 1, 1]);
    let registration = Registration::new(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(fake.number_of("fake_device", 0), 2, "the caller's");
}

#[test]
fn what_is_wrong_is_refused_and_registers_nothing() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(4);
    let page = page_size().bytes();
    let wrong = [Bytes::ZERO, Bytes::new(page.get() / 2), Bytes::new(3 * page.get())];
    for piece in wrong.into_iter().chain([Bytes::gib(512), Bytes::new(u64::MAX)]) {
        let done = pieces(piece).register(fake.runtime(), &reserve);
        assert!(matches!(done, Err(CudaError::BadPiece { given, .. }) if given == piece));
    }
    let done = Registration::options().devices([]).register(fake.runtime(), &reserve);
    assert!(matches!(done, Err(CudaError::NoDevices)));
    for devices in [vec![9], vec![0, 9], vec![-1, 0]] {
        let options = Registration::options().devices(devices);
        let registration = options.register(fake.runtime(), &reserve).unwrap();
        let failure = refused(registration.wait_all(None));
        assert_eq!((failure.call, failure.code, failure.piece), ("cudaSetDevice", 100, None));
    }
    assert_eq!(fake.number("fake_registers"), 0);
    let registration = Registration::new(fake.runtime(), &reserve).unwrap();
    let total = in_pages(Bytes::mib(4));
    for outside in [pages(total, 1), pages(0, total + 1), pages(1 << 60, 1)] {
        let done = registration.wait(outside, None);
        assert!(matches!(done, Err(CudaError::BadRange { given, .. }) if given == outside));
    }
}

#[test]
fn a_second_registration_of_the_memory_is_refused() {
    let Some(fake) = Fake::new() else { return };
    let contig = Arc::new(plain().build(Bytes::mib(4)).unwrap());
    let with_room = Reserve::options().memory(plain()).room(Bytes::mib(8));
    let with_room = with_room.build(Bytes::mib(4)).unwrap();
    let memories: [Registrable; 3] = [(&contig).into(), (&reserve(4)).into(), (&with_room).into()];
    for memory in memories {
        let register = || pieces(MIB).register(fake.runtime(), memory.clone());
        let registration = register().unwrap();
        assert!(registration.wait_all(SOON).unwrap());
        for _ in 0..2 {
            assert!(matches!(register(), Err(CudaError::Registered)));
        }
        assert_eq!(registration.ready(), Bytes::mib(4), "the earlier one stays");
        registration.close().unwrap();
        drop(register().unwrap());
        drop(register().unwrap());
    }
    with_room.grow(Bytes::mib(2)).unwrap();
}

#[test]
fn memory_of_bricks_is_refused() {
    let Some(fake) = Fake::new() else { return };
    let _turn = Turn::alone(POOL);
    let bricks = Contig::options().bricks_of(PageSize::new(2 << 20).unwrap());
    let reserve = match Reserve::options().memory(bricks).build(Bytes::mib(4)) {
        Err(ReserveError::Contig(why)) => return println!("skipped: {why}"),
        reserve => reserve.unwrap(),
    };
    let done = Registration::new(fake.runtime(), &reserve);
    assert!(matches!(done, Err(CudaError::Reserve(ReserveError::Bricks))), "{done:?}");
    assert_eq!(fake.number("fake_registers"), 0);
}

#[test]
fn threads_take_blocks_while_pieces_are_registered() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 300);
    let reserve = reserve(32);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for seed in 1..5 {
            let (fake, reserve, registration, stop) = (&fake, &reserve, &registration, &stop);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let len = Pages::new(1 + random.below(64));
                    let mut block = reserve.alloc(Request::new(len).any()).unwrap();
                    match registration.wait(block.extent(), None) {
                        Ok(done) => assert!(done),
                        Err(CudaError::Cancelled { .. }) => continue,
                        Err(why) => panic!("{why}"),
                    }
                    let bytes = block.bytes_mut().unwrap();
                    bytes.fill(seed as u8);
                    assert!(fake.is_registered(bytes.as_ptr(), 1));
                    assert!(fake.is_registered(bytes.last().unwrap(), 1));
                }
            });
        }
        let mut random = Random(9);
        let begin = std::time::Instant::now();
        while begin.elapsed() < storm(Duration::from_secs(2)) {
            random.rest(Duration::from_millis(2));
            registration.cancel();
            registration.resume().unwrap();
        }
    });
    assert!(registration.wait_all(SOON).unwrap());
}
