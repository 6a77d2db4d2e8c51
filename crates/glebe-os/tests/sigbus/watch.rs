//! Tests watches: the callback, its arguments, and the removal.

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst,
};
use std::thread;
use std::time::Duration;

use glebe_os::internal::sys::processes::sigbus::{fill, Decision, Handler, Watch};
use glebe_testing::time::slowed;

use super::armed::{page, Armed};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Seen {
    fd: i32,
    addr: AtomicUsize,
    touches: AtomicU64,
    /// Number of touches that pass before one resumes.
    passes: u64,
    frame: AtomicUsize,
}

unsafe extern "C" fn refill(addr: usize, data: *const ()) -> Decision {
    // SAFETY: the data is a live `Seen`.
    let seen = unsafe { &*data.cast::<Seen>() };
    seen.addr.store(addr, SeqCst);
    seen.frame.store(ptr::from_ref(&addr).addr(), SeqCst);
    if (seen.touches.fetch_add(1, SeqCst) + 1) % (seen.passes + 1) != 0 {
        return Decision::Pass;
    }
    // SAFETY: the page is the test's own. The first call must fail and set errno.
    unsafe {
        assert_eq!(fill::zero(-1, addr & !(page() - 1), page(), page()), Err(libc::EBADF));
        fill::zero(seen.fd, addr & !(page() - 1), page(), page()).unwrap();
    }
    Decision::Resume
}

fn watch(armed: &Armed, seen: &Seen) -> Watch {
    let handler = Handler::install().unwrap();
    // SAFETY: `seen` outlives the watch; the callback makes only system calls.
    unsafe { handler.watch(armed.range(), refill, ptr::from_ref(seen).cast()) }.unwrap()
}

fn read(at: *const u8) -> u8 {
    // SAFETY: the memory is mapped; the watch refills a lost page.
    unsafe { at.read_volatile() }
}

#[test]
fn a_callback_learns_the_exact_address_and_refills() {
    let Some(armed) = Armed::full(3, 7) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    assert_eq!(read(armed.ptr(1, 5)), 7);
    assert_eq!(seen.touches.load(SeqCst), 0);
    for (i, offset) in [(0, 0), (1, 123), (2, page() - 1), (1, 8)] {
        armed.lose(i);
        assert_eq!(read(armed.ptr(i, offset)), 0);
        assert_eq!(seen.addr.load(SeqCst), armed.addr(i, offset));
    }
    armed.lose(2);
    // SAFETY: the memory is mapped; the watch refills a lost page.
    unsafe { armed.ptr(2, 77).write_volatile(9) };
    assert_eq!((read(armed.ptr(2, 77)), read(armed.ptr(2, 78))), (9, 0));
    assert_eq!(seen.touches.load(SeqCst), 5);
}

#[test]
fn what_a_callback_filled_in_is_read() {
    unsafe extern "C" fn ones(addr: usize, data: *const ()) -> Decision {
        // SAFETY: the data is the armed memory; its first page is present.
        unsafe {
            let armed = &*data.cast::<Armed>();
            let to = addr & !(page() - 1);
            match fill::copy(armed.fd(), to, armed.ptr(0, 0), page(), page()) {
                Ok(()) => Decision::Resume,
                Err(_) => Decision::Pass,
            }
        }
    }
    let Some(armed) = Armed::full(4, 1) else { return };
    (1..4).for_each(|i| armed.lose(i));
    let handler = Handler::install().unwrap();
    // SAFETY: the memory outlives the watch; the callback makes one system call.
    let watch = unsafe { handler.watch(armed.range(), ones, ptr::from_ref(&armed).cast()) };
    assert!((0..4 * page()).all(|offset| read(armed.ptr(0, offset)) == 1));
    drop(watch);
}

#[test]
fn a_system_call_gets_efault() {
    let Some(armed) = Armed::full(2, 1) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    armed.lose(1);
    let mut pipe = [0; 2];
    // SAFETY: the test owns the descriptors; a lost page fails the call.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], armed.ptr(1, 0).cast(), 8), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(libc::write(pipe[1], armed.ptr(0, 0).cast(), 8), 8);
        pipe.iter().for_each(|fd| assert_eq!(libc::close(*fd), 0));
    }
    assert_eq!(seen.touches.load(SeqCst), 0);
}

#[test]
fn errno_is_kept() {
    let Some(armed) = Armed::empty(1) else { return };
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let _watch = watch(&armed, &seen);
    // SAFETY: errno is this thread's, and the memory is mapped.
    unsafe {
        *libc::__errno_location() = 77;
        armed.ptr(0, 3).read_volatile();
        assert_eq!(*libc::__errno_location(), 77);
    }
    assert_eq!(seen.touches.load(SeqCst), 1);
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
            // SAFETY: the stack outlives its use: `before` is restored first.
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
    let once = Seen { fd: armed.fd(), ..Seen::default() };
    let many = Seen { fd: armed.fd(), passes: 299, ..Seen::default() };
    for round in 1..=3 {
        let watches: Vec<_> = (0..300).map(|_| watch(&armed, &many)).collect();
        armed.lose(0);
        assert_eq!(read(armed.ptr(0, 0)), 0);
        assert_eq!(many.touches.load(SeqCst), 300 * round);
        drop(watches);
        let _watch = watch(&armed, &once);
        armed.lose(0);
        assert_eq!(read(armed.ptr(0, 0)), 0);
        assert_eq!((many.touches.load(SeqCst), once.touches.load(SeqCst)), (300 * round, round));
    }
}

#[test]
fn threads_watch_at_the_same_time() {
    if Armed::empty(1).is_none() {
        return;
    }
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let armed = Armed::full(1, 1).unwrap();
                let seen = Seen { fd: armed.fd(), ..Seen::default() };
                for round in 1..=200 {
                    let _watch = watch(&armed, &seen);
                    armed.lose(0);
                    assert_eq!(read(armed.ptr(0, 1)), 0);
                    assert_eq!(seen.touches.load(SeqCst), round);
                }
            });
        }
    });
}

unsafe extern "C" fn fill_behind(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's `info` is valid; the page is the test's own.
    unsafe {
        let at = (*info).si_addr().addr() & !(page() - 1);
        fill::zero(FILLS.load(SeqCst), at, page(), page()).unwrap();
    }
}
static FILLS: AtomicI32 = AtomicI32::new(-1);

/// Must run before glebe's handler is installed.
fn set_fill_behind(armed: &Armed) {
    FILLS.store(armed.fd(), SeqCst);
    // SAFETY: the handler matches the flags.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fill_behind as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
    }
}

#[test]
fn no_handler_uses_a_watch_that_was_removed() {
    glebe_testing::alone!();
    static AFTER_END: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn look(_: usize, data: *const ()) -> Decision {
        // SAFETY: the data is never freed.
        let gone = unsafe { &*data.cast::<AtomicBool>() };
        for _ in 0..200 {
            if gone.load(SeqCst) {
                AFTER_END.store(true, SeqCst);
            }
            std::hint::spin_loop();
        }
        Decision::Pass
    }
    let Some(armed) = Armed::empty(3) else { return };
    set_fill_behind(&armed);
    let handler = Handler::install().unwrap();
    let (stop, touches) = (AtomicBool::new(false), AtomicU64::new(0));
    let marks: Vec<AtomicBool> = (0..300).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|s| {
        for i in 0..3 {
            let (armed, stop, touches) = (&armed, &stop, &touches);
            s.spawn(move || {
                while !stop.load(SeqCst) {
                    assert_eq!(read(armed.ptr(i, 9)), 0);
                    armed.lose(i);
                    touches.fetch_add(1, SeqCst);
                }
            });
        }
        for gone in &marks {
            let before = touches.load(SeqCst);
            let data = ptr::from_ref(gone).cast();
            // SAFETY: the mark outlives the threads.
            let watch = unsafe { handler.watch(armed.range(), look, data) };
            while touches.load(SeqCst) == before {
                thread::yield_now();
            }
            drop(watch);
            gone.store(true, SeqCst);
        }
        stop.store(true, SeqCst);
    });
    assert!(!AFTER_END.load(SeqCst));
}

/// The child lacks the thread in the callback, so the child's drop of a watch must not wait.
#[test]
fn a_child_does_not_wait_for_its_parents_handlers() {
    glebe_testing::alone!();
    static STATE: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn stay(_: usize, _: *const ()) -> Decision {
        STATE.store(1, SeqCst);
        while STATE.load(SeqCst) == 1 {
            std::hint::spin_loop();
        }
        Decision::Pass
    }
    let Some(armed) = Armed::empty(1) else { return };
    set_fill_behind(&armed);
    let handler = Handler::install().unwrap();
    // SAFETY: the callback uses no data.
    let watch = unsafe { handler.watch(armed.range(), stay, ptr::null()) }.unwrap();
    thread::scope(|s| {
        s.spawn(|| assert_eq!(read(armed.ptr(0, 0)), 0));
        while STATE.load(SeqCst) == 0 {
            thread::yield_now();
        }
        // SAFETY: the child drops a watch, which allocates nothing, and leaves by `_exit`.
        let status = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::alarm(slowed(PATIENCE).as_secs() as libc::c_uint);
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
}

static LOST_PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Loses `LOST_PAGE` and touches it; another handler may fill it in between.
fn touch_another() {
    let at = LOST_PAGE.load(SeqCst);
    // SAFETY: the page is the test's own, and a watch refills it.
    unsafe { assert_eq!(libc::madvise(at.cast(), page(), libc::MADV_DONTNEED), 0) };
    assert_eq!(read(at), 0);
}

#[test]
fn signals_nest() {
    glebe_testing::alone!();
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn on_signal(_: libc::c_int) {
        touch_another();
        SIGNALS.fetch_add(1, SeqCst);
    }
    unsafe extern "C" fn callback(addr: usize, data: *const ()) -> Decision {
        touch_another();
        // SAFETY: `refill` requires what this function requires.
        unsafe { refill(addr, data) }
    }
    let (Some(armed), Some(other)) = (Armed::full(2, 4), Armed::empty(1)) else { return };
    LOST_PAGE.store(other.ptr(0, 0), SeqCst);
    let seen = Seen { fd: armed.fd(), ..Seen::default() };
    let of_other = Seen { fd: other.fd(), ..Seen::default() };
    let _others = watch(&other, &of_other);
    let handler = Handler::install().unwrap();
    // SAFETY: the data outlives the watch; the handler is async-signal-safe.
    let _watch = unsafe {
        libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
        handler.watch(armed.range(), callback, ptr::from_ref(&seen).cast()).unwrap()
    };
    let (me, done) = (this_thread(), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            while !done.load(SeqCst) {
                // SAFETY: the thread outlives this scope.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::yield_now();
            }
        });
        let mut rounds = 0;
        while SIGNALS.load(SeqCst) < 300 || rounds < 300 {
            armed.lose(1);
            assert_eq!((read(armed.ptr(1, 7)), read(armed.ptr(0, 7))), (0, 4));
            rounds += 1;
        }
        done.store(true, SeqCst);
        assert_eq!(seen.touches.load(SeqCst), rounds);
    });
}

fn this_thread() -> libc::pthread_t {
    // SAFETY: the call takes no arguments.
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
