//! Watches: the callback, what it is told, and its end.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use glebe::sys::sigbus::{fill, By, Handler, Outcome, Watch};

use crate::armed::{page, Armed};
use crate::child::passes_alone;

/// What [`refill`] works on and what it was told.
#[derive(Default)]
struct Seen {
    fd: i32,
    addr: AtomicUsize,
    by_copy: AtomicU64,
    by_program: AtomicU64,
    frame: AtomicUsize,
}

/// Fills the page with zeros, or for a copy does nothing.
unsafe extern "C" fn refill(addr: usize, by: By, data: *const ()) -> Outcome {
    // SAFETY: the watch's data.
    let seen = unsafe { &*data.cast::<Seen>() };
    seen.addr.store(addr, SeqCst);
    seen.frame.store(ptr::from_ref(&addr).addr(), SeqCst);
    if by == By::Copy {
        seen.by_copy.fetch_add(1, SeqCst);
        return Outcome::Pass;
    }
    seen.by_program.fetch_add(1, SeqCst);
    // SAFETY: a page of the test's own mapping. The first call is to fail and to set errno.
    unsafe {
        assert_eq!(fill::zero(-1, addr & !(page() - 1), page(), page()), Err(libc::EBADF));
        fill::zero(seen.fd, addr & !(page() - 1), page(), page()).unwrap();
    }
    Outcome::Resume
}

fn watch(armed: &Armed, seen: &Seen) -> Watch {
    let handler = Handler::install().unwrap();
    // SAFETY: `seen` outlives the watch in every test; the callback only makes system calls.
    unsafe { handler.watch(armed.range(), refill, ptr::from_ref(seen).cast()) }.unwrap()
}

fn read(at: *const u8) -> u8 {
    // SAFETY: mapped memory of the test's own, whose loss is settled by its watch.
    unsafe { at.read_volatile() }
}

#[test]
fn a_callback_learns_the_exact_address_and_refills() {
    let Some(armed) = Armed::full(3, 7) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    assert_eq!(read(armed.ptr(1, 5)), 7);
    assert_eq!(seen.by_program.load(SeqCst), 0);
    for (i, offset) in [(0, 0), (1, 123), (2, page() - 1), (1, 8)] {
        armed.lose(i);
        assert_eq!(read(armed.ptr(i, offset)), 0);
        assert_eq!(seen.addr.load(SeqCst), armed.addr(i, offset));
    }
    // A store too, which then stands.
    armed.lose(2);
    // SAFETY: as in `read`.
    unsafe { armed.ptr(2, 77).write_volatile(9) };
    assert_eq!((read(armed.ptr(2, 77)), read(armed.ptr(2, 78))), (9, 0));
    assert_eq!(seen.by_program.load(SeqCst), 5);
}

#[test]
fn a_callback_may_leave_a_copy_its_error() {
    let Some(armed) = Armed::empty(1) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    let mut to = [0u8; 16];
    let handler = Handler::install().unwrap();
    // SAFETY: both ranges are mapped and the test's own.
    let got = unsafe { handler.try_copy(to.as_mut_ptr(), armed.ptr(0, 40), 16) };
    assert_eq!(got, Err(armed.addr(0, 40)));
    assert_eq!((seen.by_copy.load(SeqCst), seen.by_program.load(SeqCst)), (1, 0));
}

#[test]
fn a_copy_goes_on_where_the_callback_refills() {
    unsafe extern "C" fn ones(addr: usize, _: By, data: *const ()) -> Outcome {
        // SAFETY: the data is the armed memory; the source is a page of it that is there.
        unsafe {
            let armed = &*data.cast::<Armed>();
            let to = addr & !(page() - 1);
            match fill::copy(armed.fd(), to, armed.ptr(0, 0), page(), page()) {
                Ok(()) => Outcome::Resume,
                Err(_) => Outcome::Pass,
            }
        }
    }
    let Some(armed) = Armed::full(4, 1) else { return };
    (1..4).for_each(|i| armed.lose(i));
    let handler = Handler::install().unwrap();
    // SAFETY: the armed memory outlives the watch; the callback makes one system call.
    let watch = unsafe { handler.watch(armed.range(), ones, ptr::from_ref(&armed).cast()) };
    let mut to = vec![0; 4 * page()];
    // SAFETY: both ranges are mapped and the test's own.
    unsafe { handler.try_copy(to.as_mut_ptr(), armed.ptr(0, 0), to.len()) }.unwrap();
    assert_eq!(to, vec![1; 4 * page()]);
    drop(watch);
}

#[test]
fn errno_is_kept() {
    let Some(armed) = Armed::empty(2) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    let mut to = 0;
    // SAFETY: this thread's errno; mapped memory of the test's own.
    unsafe {
        *libc::__errno_location() = 77;
        armed.ptr(0, 3).read_volatile();
        assert_eq!(*libc::__errno_location(), 77);
        let lost = Handler::install().unwrap().try_copy(&mut to, armed.ptr(1, 0), 1);
        assert_eq!((lost, *libc::__errno_location()), (Err(armed.addr(1, 0)), 77));
    }
    assert_eq!(seen.by_program.load(SeqCst), 1);
}

#[test]
fn the_handler_runs_on_the_alternate_stack() {
    let Some(armed) = Armed::empty(1) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    thread::scope(|s| {
        s.spawn(|| {
            let stack = vec![0u8; 1 << 17];
            let range = stack.as_ptr_range();
            // SAFETY: the stack outlives its use: the thread's own is put back before it goes.
            unsafe {
                let (mut own, mut before) =
                    (std::mem::zeroed::<libc::stack_t>(), std::mem::zeroed());
                own.ss_sp = stack.as_ptr().cast_mut().cast();
                own.ss_size = stack.len();
                assert_eq!(libc::sigaltstack(&own, &mut before), 0);
                assert_eq!(armed.ptr(0, 1).read_volatile(), 0);
                assert_eq!(libc::sigaltstack(&before, ptr::null_mut()), 0);
            }
            let frame = seen.frame.load(SeqCst);
            assert!((range.start.addr()..range.end.addr()).contains(&frame));
        });
    });
}

#[test]
fn more_watches_than_one_chunk_holds() {
    let Some(armed) = Armed::full(1, 1) else { return };
    let handler = Handler::install().unwrap();
    unsafe extern "C" fn none(_: usize, _: By, data: *const ()) -> Outcome {
        // SAFETY: the watch's data.
        unsafe { (*data.cast::<AtomicU64>()).fetch_add(1, SeqCst) };
        Outcome::Pass
    }
    let asked = AtomicU64::new(0);
    let data = ptr::from_ref(&asked).cast();
    for _ in 0..3 {
        // SAFETY: the counter outlives the watches.
        let many: Vec<_> = (0..300)
            .map(|_| unsafe { handler.watch(armed.range(), none, data) }.unwrap())
            .collect();
        armed.lose(0);
        asked.store(0, SeqCst);
        let mut to = 0;
        // SAFETY: both mapped, and the test's own.
        unsafe { handler.try_copy(&mut to, armed.ptr(0, 0), 1) }.unwrap_err();
        assert_eq!(asked.load(SeqCst), 300);
        drop(many);
        // SAFETY: as above.
        unsafe { handler.try_copy(&mut to, armed.ptr(0, 0), 1) }.unwrap_err();
        assert_eq!(asked.load(SeqCst), 300);
        armed.fill(0, 1);
    }
}

/// Each thread's own watches come and go, and each is asked every time.
#[test]
fn threads_watch_at_the_same_time() {
    unsafe extern "C" fn count(_: usize, _: By, data: *const ()) -> Outcome {
        // SAFETY: the watch's data.
        unsafe { (*data.cast::<AtomicU64>()).fetch_add(1, SeqCst) };
        Outcome::Pass
    }
    if Armed::empty(1).is_none() {
        return;
    }
    let handler = Handler::install().unwrap();
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let armed = Armed::empty(1).unwrap();
                let (asked, mut to) = (AtomicU64::new(0), 0);
                for round in 1..=200 {
                    let data = ptr::from_ref(&asked).cast();
                    // SAFETY: the counter outlives the watch; both ends are mapped.
                    unsafe {
                        let _watch = handler.watch(armed.range(), count, data).unwrap();
                        handler.try_copy(&mut to, armed.ptr(0, 1), 1).unwrap_err();
                    }
                    assert_eq!(asked.load(SeqCst), round);
                }
            });
        }
    });
}

/// The data of a watch is marked as gone right after its removal; a callback that still sees it
/// then, or enters after, says so.
#[test]
fn no_handler_uses_a_watch_that_was_removed() {
    static AFTER_END: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn look(_: usize, _: By, data: *const ()) -> Outcome {
        // SAFETY: the data is never freed, only marked.
        let gone = unsafe { &*data.cast::<AtomicBool>() };
        for _ in 0..200 {
            if gone.load(SeqCst) {
                AFTER_END.store(true, SeqCst);
            }
            std::hint::spin_loop();
        }
        Outcome::Pass
    }
    let Some(armed) = Armed::empty(1) else { return };
    let handler = Handler::install().unwrap();
    let (stop, errors) = (AtomicBool::new(false), AtomicU64::new(0));
    let marks: Vec<AtomicBool> = (0..300).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut to = 0;
                while !stop.load(SeqCst) {
                    // SAFETY: both mapped, and the test's own.
                    unsafe { handler.try_copy(&mut to, armed.ptr(0, 9), 1) }.unwrap_err();
                    errors.fetch_add(1, SeqCst);
                }
            });
        }
        for gone in &marks {
            let before = errors.load(SeqCst);
            // SAFETY: the mark outlives the threads.
            let watch = unsafe { handler.watch(armed.range(), look, ptr::from_ref(gone).cast()) };
            while errors.load(SeqCst) == before {
                thread::yield_now();
            }
            drop(watch);
            gone.store(true, SeqCst);
        }
        stop.store(true, SeqCst);
    });
    assert!(!AFTER_END.load(SeqCst));
}

/// A thread that stands in a callback does not exist in a child: a removal there does not wait.
#[test]
fn a_child_does_not_wait_for_its_parents_handlers() {
    passes_alone("watch::a_child_does_not_wait_for_its_parents_handlers", || {
        static STATE: AtomicU64 = AtomicU64::new(0);
        unsafe extern "C" fn stay(_: usize, _: By, _: *const ()) -> Outcome {
            STATE.store(1, SeqCst);
            while STATE.load(SeqCst) == 1 {
                std::hint::spin_loop();
            }
            Outcome::Pass
        }
        let Some(armed) = Armed::empty(1) else { return };
        let handler = Handler::install().unwrap();
        // SAFETY: no data.
        let watch = unsafe { handler.watch(armed.range(), stay, ptr::null()) }.unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                let mut to = 0;
                // SAFETY: both mapped, and the test's own.
                unsafe { handler.try_copy(&mut to, armed.ptr(0, 0), 1) }.unwrap_err();
            });
            while STATE.load(SeqCst) == 0 {
                thread::yield_now();
            }
            // SAFETY: the child drops a watch, which allocates nothing, and leaves by _exit; an
            // alarm ends it should that wait.
            let status = unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    libc::alarm(20);
                    drop(watch);
                    libc::_exit(0);
                }
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                std::mem::forget(watch);
                status
            };
            STATE.store(2, SeqCst);
            assert_eq!(status, 0);
        });
    });
}

thread_local! {
    /// How many copies a nested signal's handler made on this thread.
    static NESTED: Cell<u64> = const { Cell::new(0) };
}
/// The page that the handlers of [`signals_nest`] touch.
static LOST_PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

fn copies_nothing() {
    let at = LOST_PAGE.load(SeqCst);
    let mut to = 0;
    // SAFETY: a mapped page that is lost all the time.
    let got = unsafe { Handler::install().unwrap().try_copy(&mut to, at, 1) };
    assert_eq!(got, Err(at.addr()));
}

/// Another signal's handler, and a callback, make copies of their own within a copy.
#[test]
fn signals_nest() {
    passes_alone("watch::signals_nest", || {
        unsafe extern "C" fn on_signal(_: libc::c_int) {
            copies_nothing();
            NESTED.set(NESTED.get() + 1);
        }
        unsafe extern "C" fn callback(_: usize, _: By, _: *const ()) -> Outcome {
            copies_nothing();
            Outcome::Pass
        }
        let (Some(armed), Some(other)) = (Armed::full(2, 4), Armed::empty(1)) else { return };
        LOST_PAGE.store(other.ptr(0, 11), SeqCst);
        armed.lose(1);
        let handler = Handler::install().unwrap();
        // SAFETY: no data; the signal's handler does what it may.
        let _watch = unsafe {
            libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
            handler.watch(armed.range(), callback, ptr::null()).unwrap()
        };
        let (me, done) = (this_thread(), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                while !done.load(SeqCst) {
                    // SAFETY: the thread lives as long as this scope.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    thread::yield_now();
                }
            });
            let mut to = vec![0; page() + 1];
            while NESTED.get() < 300 {
                // SAFETY: both mapped, and the test's own.
                unsafe {
                    let got = handler.try_copy(to.as_mut_ptr(), armed.ptr(0, 0), page() + 1);
                    assert_eq!(got, Err(armed.addr(1, 0)));
                    handler.try_copy(to.as_mut_ptr(), armed.ptr(0, 0), page()).unwrap();
                }
                assert!(to[..page()].iter().all(|b| *b == 4));
                to.fill(0);
            }
            done.store(true, SeqCst);
        });
    });
}

fn this_thread() -> libc::pthread_t {
    // SAFETY: takes nothing.
    unsafe { libc::pthread_self() }
}

#[test]
fn filling_keeps_what_is_there_and_says_what_is_wrong() {
    let Some(armed) = Armed::empty(4) else { return };
    armed.fill(1, 8);
    let from = vec![6u8; 4 * page()];
    // SAFETY: pages of the test's own mapping.
    unsafe {
        fill::zero(armed.fd(), armed.addr(0, 0), 3 * page(), page()).unwrap();
        let first = |i: usize| read(armed.ptr(i, 0));
        assert_eq!([first(0), first(1), first(2)], [0, 8, 0]);
        armed.lose(0);
        armed.lose(2);
        fill::copy(armed.fd(), armed.addr(0, 0), from.as_ptr(), 4 * page(), page()).unwrap();
        assert_eq!([first(0), first(1), first(2), first(3)], [6, 8, 6, 6]);

        let unarmed = from.as_ptr().addr().next_multiple_of(page());
        let to = |at, len| fill::zero(armed.fd(), at, len, page());
        assert_eq!(to(unarmed, page()), Err(libc::ENOENT));
        assert_eq!(to(armed.addr(0, 1), page()), Err(libc::EINVAL));
        armed.lose(3);
        let lost = armed.ptr(3, 0);
        armed.lose(2);
        let got = fill::copy(armed.fd(), armed.addr(2, 0), lost, page(), page());
        assert_eq!(got, Err(libc::EFAULT));
    }
}
