//! Tests that all is unregistered before memory is given back, and that CUDA keeps no addresses of
//! memory that is gone.

use super::*;
use glebe_testing::stressed::{in_child, ChildEnd};

#[test]
fn a_close_waits_for_the_devices_and_unregisters_nothing_if_it_cannot() {
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(4);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    let count = fake.number("fake_count");
    fake.set("fake_fail_synchronize", 900);
    let failure = refused(registration.close());
    assert_eq!((failure.call, failure.code), ("cudaDeviceSynchronize", 900));
    assert!(failure.text.contains("capturing"), "{failure}");
    assert_eq!(fake.number("fake_count"), count);
    assert!(registration.wait_all(SOON).unwrap(), "the pieces stay usable");
    fake.set("fake_fail_synchronize", 0);
    registration.close().unwrap();
    assert_eq!(fake.number_of("fake_synchronizes", 0), 1);
}

#[test]
fn a_close_waits_only_for_the_piece_under_way() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 20_000);
    let reserve = reserve(16);
    let registration = small_pieces().register(fake.runtime(), &reserve).unwrap();
    registration.wait(pages(0, 1), None).unwrap();
    registration.close().unwrap();
    assert_eq!(fake.number("fake_count"), 0);
    let of_all = in_pages(Bytes::mib(16)) / 16;
    assert!(u64::try_from(fake.number("fake_registers")).unwrap() < of_all);
}

#[test]
fn memory_stays_until_it_is_unregistered() {
    let Some(fake) = Fake::new() else { return };
    let contig = Arc::new(plain().build(Bytes::mib(4)).unwrap());
    let registration = pieces(MIB).register(fake.runtime(), &contig).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    let weak = Arc::downgrade(&contig);
    drop(contig);
    assert_eq!(fake.number("fake_count"), 4);
    assert!(weak.strong_count() > 0);
    // The runtime counts a violation if it unregisters memory that is gone.
    registration.close().unwrap();
    assert_eq!(weak.strong_count(), 0, "the memory is free when `close` returns");

    let reserve = reserve(4);
    let registration = pieces(MIB).register(fake.runtime(), &reserve).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    drop(reserve);
    assert!(fake.number("fake_count") >= 4);
    drop(registration);
    assert_eq!(fake.number("fake_count"), 0);
}

#[test]
fn a_piece_that_cuda_keeps_keeps_the_memory_and_a_close_tries_again() {
    let Some(fake) = Fake::new() else { return };
    let contig = Arc::new(plain().build(Bytes::mib(4)).unwrap());
    let registration = pieces(MIB).register(fake.runtime(), &contig).unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    let weak = Arc::downgrade(&contig);
    drop(contig);
    fake.fail("fake_fail_unregister", 2, 1);
    let failure = refused(registration.close());
    assert_eq!((failure.call, failure.code), ("cudaHostUnregister", 1));
    assert_eq!(failure.piece, Some((Bytes::mib(2), MIB)));
    assert_eq!((fake.number("fake_count"), registration.ready()), (1, MIB));
    assert_eq!(weak.strong_count(), 1);
    let kept = pages(in_pages(Bytes::mib(2)), in_pages(MIB));
    assert!(registration.wait(kept, None).unwrap(), "the piece stays usable");
    assert_eq!(refused(registration.wait_all(None)), failure);
    registration.resume().unwrap();
    assert!(registration.wait_all(SOON).unwrap());
    assert_eq!(fake.number("fake_count"), 4);
    registration.close().unwrap();
    assert_eq!(weak.strong_count(), 0);
}

#[test]
fn an_unregister_of_what_is_gone_ends_the_registration() {
    let Some(fake) = Fake::new() else { return };
    for code in [4, 713] {
        let reserve = reserve(4);
        let registration = Registration::new(fake.runtime(), &reserve).unwrap();
        assert!(registration.wait_all(SOON).unwrap());
        fake.fail("fake_fail_unregister", 1, code);
        registration.close().unwrap();
        assert_eq!(registration.ready(), Bytes::ZERO);
        fake.set("fake_forget", 0);
    }
}

#[test]
fn a_drop_unregisters_all_or_keeps_the_memory_for_ever() {
    let Some(fake) = Fake::new() else { return };
    let register = |contig: &Arc<Contig>| {
        let registration = pieces(MIB).register(fake.runtime(), contig).unwrap();
        assert!(registration.wait_all(SOON).unwrap());
        registration
    };
    let contig = Arc::new(plain().build(Bytes::mib(4)).unwrap());
    drop(register(&contig));
    assert_eq!((fake.number("fake_count"), Arc::strong_count(&contig)), (0, 1));
    assert_eq!(fake.number_of("fake_synchronizes", 0), 1);

    let registration = register(&contig);
    fake.fail("fake_fail_unregister", 1, 1);
    drop(registration);
    assert_eq!((fake.number("fake_count"), Arc::strong_count(&contig)), (1, 2));
    fake.set("fake_forget", 0);
}

#[test]
fn a_close_beside_threads_that_wait_wakes_them() {
    let Some(fake) = Fake::new() else { return };
    fake.set("fake_delay_us", 1_000);
    for _ in 0..20 {
        let reserve = reserve(4);
        let registration = pieces(MIB).pause(EVER).register(fake.runtime(), &reserve).unwrap();
        registration.wait(pages(0, 1), None).unwrap();
        thread::scope(|scope| {
            let waits = || registration.wait_all(None);
            let waiters = [(); 3].map(|()| scope.spawn(waits));
            let closers = [(); 2].map(|()| scope.spawn(|| registration.close()));
            for closer in closers {
                closer.join().unwrap().unwrap();
            }
            for waiter in waiters {
                let done = waiter.join().unwrap();
                assert!(matches!(done, Err(CudaError::Closed)), "{done:?}");
            }
        });
        assert_eq!(fake.number("fake_count"), 0);
    }
}

#[test]
fn a_child_makes_no_call_and_the_parent_goes_on() {
    glebe_testing::alone!();
    let Some(fake) = Fake::new() else { return };
    let reserve = reserve(16);
    let contig = Arc::new(plain().build(Bytes::mib(4)).unwrap());
    let mut registration = Some(pieces(MIB).register(fake.runtime(), &reserve).unwrap());
    let runtime = fake.runtime();
    fake.set("fake_delay_us", 500);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let own = registration.take().unwrap();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        // Somebody has the lock at most forks.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(own.ready() <= own.total());
                }
            });
        }
        for _ in 0..30 {
            let child = in_child(|| {
                let forked = |done: Result<bool, CudaError>| matches!(done, Err(CudaError::Forked));
                let begun = pieces(MIB).register(runtime, &reserve);
                let of_contig = pieces(MIB).register(runtime, &contig);
                let calls = [
                    forked(own.wait(pages(0, 1), NOW)),
                    forked(own.wait_all(NOW)),
                    forked(own.progress(Bytes::ZERO, NOW).map(|_| true)),
                    forked(own.resume().map(|()| true)),
                    own.ready() == Bytes::ZERO,
                    own.total() == Bytes::mib(16),
                    own.close().is_ok(),
                    matches!(begun, Err(CudaError::Reserve(ReserveError::Forked))),
                    matches!(of_contig, Err(CudaError::Forked)),
                    fake.number("fake_violations") == 0,
                ];
                own.cancel();
                calls.iter().filter(|right| !**right).count() as u8
            });
            assert_eq!(child, ChildEnd::Exit(0));
        }
    });
    // The child inherits a piece.
    assert!(own.wait(pages(0, 1), SOON).unwrap());
    registration = Some(own);
    let child = in_child(|| {
        drop(registration.take());
        u8::from(fake.number("fake_violations") != 0 || fake.number("fake_count") == 0)
    });
    assert_eq!(child, ChildEnd::Exit(0));
    let own = registration.unwrap();
    assert!(own.wait_all(SOON).unwrap());
    own.close().unwrap();
}
