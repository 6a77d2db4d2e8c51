//! Tests the earlier SIGBUS handler and the default action.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use glebe_os::internal::sys::processes::sigbus::{Decision, Handler, Watch};
use glebe_testing::process::{child_of, is_child};
use libc::{c_int, c_void, siginfo_t};

use super::armed::{page, Armed};

static CALLS: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);
static ADDR: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// The file that the earlier handlers extend.
static FILE: AtomicI32 = AtomicI32::new(-1);

fn blocked() -> u64 {
    // SAFETY: the call fills a local set.
    unsafe {
        let mut now = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut now);
        [libc::SIGBUS, libc::SIGUSR1, libc::SIGUSR2]
            .iter()
            .enumerate()
            .map(|(bit, signal)| (libc::sigismember(&now, *signal) as u64) << bit)
            .sum()
    }
}

fn settle() {
    CALLS.fetch_add(1, SeqCst);
    BLOCKED.store(blocked(), SeqCst);
    // SAFETY: `FILE` is a descriptor of the test, or -1.
    unsafe { libc::ftruncate(FILE.load(SeqCst), page() as libc::off_t) };
}

unsafe extern "C" fn plain(signal: c_int) {
    assert_eq!(signal, libc::SIGBUS);
    settle();
}

unsafe extern "C" fn full(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    assert!(signal == libc::SIGBUS && !context.is_null());
    // SAFETY: the kernel's `info` is valid.
    unsafe {
        ADDR.store((*info).si_addr().addr(), SeqCst);
        CODE.store((*info).si_code, SeqCst);
    }
    settle();
}

fn set(handler: usize, flags: c_int) {
    // SAFETY: the handlers match the flags.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
    }
}

fn is_set() -> usize {
    // SAFETY: the call fills only a local.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGBUS, ptr::null(), &mut now), 0);
        now.sa_sigaction
    }
}

unsafe extern "C" fn ask(_: usize, _: *const ()) -> Decision {
    ASKED.fetch_add(1, SeqCst);
    Decision::Pass
}

fn watch(range: std::ops::Range<usize>) -> Watch {
    // SAFETY: the callback uses no data.
    unsafe { Handler::install().unwrap().watch(range, ask, ptr::null()) }.unwrap()
}

fn read(at: *const u8) -> u8 {
    // SAFETY: the page is mapped; its loss is expected.
    unsafe { at.read_volatile() }
}

/// Runs `body` in a child that runs only `test`; SIGBUS must kill the child.
fn dies(test: &str, body: fn()) {
    if is_child() {
        leave_no_core();
        return body();
    }
    let status = child_of(test).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

fn leave_no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call reads a local.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// A page of an empty file, whose touch raises SIGBUS.
struct Truncated {
    file: File,
    at: *mut u8,
}

impl Truncated {
    fn new() -> Self {
        // SAFETY: file and mapping are new.
        let (file, at) = unsafe {
            let fd = libc::memfd_create(c"truncated".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let at = libc::mmap(ptr::null_mut(), page(), libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            (File::from_raw_fd(fd), at.cast())
        };
        FILE.store(file.as_raw_fd(), SeqCst);
        Self { file, at }
    }

    fn touch(&self, offset: usize) {
        self.file.set_len(0).unwrap();
        assert_eq!(read(self.at.wrapping_add(offset)), 0);
    }
}

#[test]
fn nothing_is_installed_unasked() {
    glebe_testing::alone!();
    set(full as *const () as usize, libc::SA_SIGINFO);
    assert_eq!(is_set(), full as *const () as usize);
    let handler = Handler::install().unwrap();
    assert_ne!(is_set(), full as *const () as usize);
    assert!(handler.is_first().unwrap());
    let ours = is_set();
    Handler::install().unwrap();
    assert_eq!(is_set(), ours);
    set(full as *const () as usize, libc::SA_SIGINFO);
    assert!(!handler.is_first().unwrap());
    Handler::install().unwrap();
    assert!(!handler.is_first().unwrap());
}

#[test]
fn threads_install_one_handler() {
    glebe_testing::alone!();
    set(plain as *const () as usize, 0);
    let begin = std::sync::Barrier::new(6);
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                begin.wait();
                assert!(Handler::install().unwrap().is_first().unwrap());
            });
        }
    });
    let file = Truncated::new();
    file.touch(1);
    assert_eq!(CALLS.load(SeqCst), 1);
}

#[test]
fn a_plain_handler_has_what_is_not_watched() {
    glebe_testing::alone!();
    set(plain as *const () as usize, 0);
    let Some(armed) = Armed::empty(1) else { return };
    let _watch = watch(armed.range());
    let file = Truncated::new();
    for calls in 1..4 {
        file.touch(17);
        assert_eq!(CALLS.load(SeqCst), calls);
        assert_eq!(BLOCKED.load(SeqCst), 0b011);
        assert_eq!(blocked(), 0);
    }
    assert_eq!(ASKED.load(SeqCst), 0);
    // If the watch passes, the earlier handler runs too.
    let watched = watch(file.at.addr()..file.at.addr() + page());
    file.touch(18);
    assert_eq!((ASKED.load(SeqCst), CALLS.load(SeqCst)), (1, 4));
    drop(watched);
}

#[test]
fn a_full_handler_gets_what_the_kernel_said() {
    glebe_testing::alone!();
    set(full as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
    Handler::install().unwrap();
    let file = Truncated::new();
    for offset in [0, 99, page() - 1] {
        file.touch(offset);
        assert_eq!(ADDR.load(SeqCst), file.at.addr() + offset);
        assert_eq!(CODE.load(SeqCst), libc::BUS_ADRERR);
        assert_eq!(BLOCKED.load(SeqCst), 0b010);
        assert_eq!(blocked(), 0);
    }
    assert_eq!(CALLS.load(SeqCst), 3);
}

#[test]
fn what_was_sent_is_nobodys_touch() {
    glebe_testing::alone!();
    set(full as *const () as usize, libc::SA_SIGINFO);
    let Some(armed) = Armed::empty(1) else { return };
    let _watch = watch(armed.range());
    // SAFETY: all signals go to this thread. `raise` sends a user's code, the loop kernel codes.
    unsafe {
        libc::raise(libc::SIGBUS);
        assert_eq!((CALLS.load(SeqCst), CODE.load(SeqCst)), (1, libc::SI_TKILL));
        let codes = [libc::BUS_MCEERR_AO, libc::BUS_MCEERR_AR, libc::BUS_ADRALN];
        for (calls, code) in (2..).zip(codes) {
            let mut info: siginfo_t = std::mem::zeroed();
            info.si_signo = libc::SIGBUS;
            info.si_code = code;
            // The address follows three `c_int`s and padding.
            ptr::from_mut(&mut info).cast::<usize>().add(2).write(armed.addr(0, 5));
            let (pid, tid) = (libc::getpid(), libc::gettid());
            let sent = libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGBUS, &info);
            assert_eq!(sent, 0, "{}", io::Error::last_os_error());
            assert_eq!((CALLS.load(SeqCst), CODE.load(SeqCst)), (calls, code));
            assert_eq!(ADDR.load(SeqCst), armed.addr(0, 5));
        }
    }
    assert_eq!(ASKED.load(SeqCst), 0);
}

#[test]
fn the_default_kills() {
    dies("sigbus::chain::the_default_kills", || {
        set(libc::SIG_DFL, 0);
        Handler::install().unwrap();
        let file = Truncated::new();
        file.touch(3);
    });
}

#[test]
fn the_default_kills_who_is_sent_it() {
    dies("sigbus::chain::the_default_kills_who_is_sent_it", || {
        set(libc::SIG_DFL, 0);
        Handler::install().unwrap();
        // SAFETY: `raise` signals this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    });
}

#[test]
fn a_watch_that_passes_leaves_the_default() {
    if Armed::empty(1).is_none() {
        return; // `Armed::empty` printed the reason
    }
    dies("sigbus::chain::a_watch_that_passes_leaves_the_default", || {
        set(libc::SIG_DFL, 0);
        let Some(armed) = Armed::empty(1) else { std::process::abort() };
        let _watch = watch(armed.range());
        read(armed.ptr(0, 0));
    });
}

#[test]
fn ignored_is_ignored_when_sent() {
    glebe_testing::alone!();
    set(libc::SIG_IGN, 0);
    Handler::install().unwrap();
    // SAFETY: `raise` signals this thread.
    unsafe { libc::raise(libc::SIGBUS) };
}

#[test]
fn ignored_kills_when_touched() {
    dies("sigbus::chain::ignored_kills_when_touched", || {
        set(libc::SIG_IGN, 0);
        Handler::install().unwrap();
        let file = Truncated::new();
        file.touch(3);
    });
}

#[test]
fn what_kills_names_the_exact_address() {
    glebe_testing::alone!();
    set(libc::SIG_DFL, 0);
    Handler::install().unwrap();
    let file = Truncated::new();
    let at = file.at.wrapping_add(345);
    leave_no_core();
    // SAFETY: the child only touches memory; the parent fills locals.
    unsafe {
        let null = ptr::null_mut::<c_void>();
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, null, null);
            at.read_volatile();
            libc::_exit(0);
        }
        let mut stops = 0;
        loop {
            let (mut status, mut info) = (0, std::mem::zeroed::<siginfo_t>());
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            if !libc::WIFSTOPPED(status) {
                assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
                break;
            }
            let signal = libc::WSTOPSIG(status);
            if libc::ptrace(libc::PTRACE_GETSIGINFO, child, null, &mut info) != 0 {
                println!("skipped: ptrace: {}", io::Error::last_os_error());
                libc::kill(child, libc::SIGKILL);
                return;
            }
            assert_eq!((signal, info.si_code), (libc::SIGBUS, libc::BUS_ADRERR));
            assert_eq!(info.si_addr().addr(), at.addr());
            stops += 1;
            libc::ptrace(libc::PTRACE_CONT, child, null, signal as usize);
        }
        assert_eq!(stops, 2, "one for the handler, one that kills");
    }
}

#[test]
fn a_handler_for_one_time_is_called_once() {
    dies("sigbus::chain::a_handler_for_one_time_is_called_once", || {
        set(plain as *const () as usize, libc::SA_RESETHAND);
        Handler::install().unwrap();
        let file = Truncated::new();
        file.touch(3);
        if CALLS.load(SeqCst) != 1 {
            std::process::abort();
        }
        file.touch(3);
    });
}
