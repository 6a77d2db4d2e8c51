//! Tests forks with contended locks, forks in threads of the C library, and clone(2), which runs no
//! fork steps.
#![allow(unsafe_code)] // Safety: fork, clone, waitpid, pthreads; children exit by _exit.

use std::ptr;
use std::sync::OnceLock;

use super::*;
use crate::internal::sync::{lock, Mutex, MutexGuard, StaticMutex};

struct Locks {
    locks: [StaticMutex<u64>; 4],
    held: StaticMutex<Held>,
    prepared: MappedWord,
    parents: MappedWord,
    children: MappedWord,
}

struct Held(Vec<MutexGuard<'static, u64>>);

// SAFETY: only the forking thread makes and drops the guards.
unsafe impl Send for Held {}

static LOCKS: Locks = Locks {
    locks: [const { Mutex::new(0) }; 4],
    held: Mutex::new(Held(Vec::new())),
    prepared: MappedWord::new(0),
    parents: MappedWord::new(0),
    children: MappedWord::new(0),
};

static STEP: Step = Step {
    prepare: || {
        LOCKS.prepared.fetch_add(1, Ordering::Relaxed);
        lock(&LOCKS.held).0.extend(LOCKS.locks.iter().map(lock));
    },
    parent: || {
        LOCKS.parents.fetch_add(1, Ordering::Relaxed);
        lock(&LOCKS.held).0.clear();
    },
    child: || {
        LOCKS.children.fetch_add(1, Ordering::Relaxed);
        lock(&LOCKS.held).0.clear();
    },
};

fn added() {
    static ADDED: OnceLock<()> = OnceLock::new();
    ADDED.get_or_init(|| add(&STEP).unwrap());
}

fn child_says(make: impl FnOnce() -> i32, check: impl FnOnce() -> bool) -> bool {
    let pid = make();
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the child runs `check` and exits by _exit.
    unsafe {
        if pid == 0 {
            libc::alarm(20);
            libc::_exit(i32::from(!check()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

fn fork() -> i32 {
    // SAFETY: the child only runs the check of `child_says`.
    unsafe { libc::fork() }
}

fn raw_clone() -> i32 {
    let none = ptr::null::<u8>();
    // SAFETY: without flags, the child is a copy of the process.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, none, none, none, none) as i32 }
}

fn all_free() -> bool {
    LOCKS.locks.iter().all(|lock| lock.try_lock().is_ok())
}

#[test]
fn a_child_finds_every_lock_free_whatever_the_threads_did() {
    const CHILDREN: u32 = 100;
    added();
    let stop = MappedWord::new(0);
    std::thread::scope(|scope| {
        for first in 0..LOCKS.locks.len() {
            let stop = &stop;
            scope.spawn(move || {
                let mut at = first;
                while stop.load(Ordering::Relaxed) == 0 {
                    *lock(&LOCKS.locks[at % LOCKS.locks.len()]) += 1;
                    at += 1;
                }
            });
        }
        let before = LOCKS.children.load(Ordering::Relaxed);
        let bad = (0..CHILDREN).filter(|_| {
            !child_says(fork, || {
                LOCKS.children.load(Ordering::Relaxed) > before && !is_without_steps() && all_free()
            })
        });
        let bad = bad.count();
        stop.store(1, Ordering::Relaxed);
        assert_eq!(bad, 0, "of {CHILDREN} children");
    });
    let prepared = LOCKS.prepared.load(Ordering::Relaxed);
    assert!(prepared >= CHILDREN.into(), "{prepared}");
}

#[test]
fn a_fork_in_another_librarys_thread_runs_the_steps() {
    extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
        let said = child_says(fork, || !is_without_steps() && all_free());
        ptr::with_exposed_provenance_mut(usize::from(said))
    }
    added();
    // SAFETY: the thread is joined before the function returns.
    unsafe {
        let mut thread = std::mem::zeroed();
        let made = libc::pthread_create(&mut thread, ptr::null(), body, ptr::null_mut());
        assert_eq!(made, 0);
        let mut said = ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &mut said), 0);
        assert_eq!(said.addr(), 1);
    }
}

#[test]
fn a_child_made_without_the_c_library_is_known() {
    added();
    assert!(!is_without_steps());
    let grandchild = || is_without_steps();
    assert!(child_says(fork, || {
        let said = child_says(raw_clone, || {
            is_without_steps() && child_says(fork, grandchild) && child_says(raw_clone, grandchild)
        });
        said && !is_without_steps()
    }));
    assert!(!is_without_steps());
    assert!(child_says(fork, || {
        !is_without_steps()
            && child_says(fork, || !is_without_steps())
            && child_says(raw_clone, is_without_steps)
    }));
}

#[test]
fn children_that_share_the_memory_differ_in_nothing() {
    added();
    let status = std::process::Command::new("true").status().unwrap();
    assert!(status.success());
    assert!(!is_without_steps());
}

#[test]
fn a_real_time_thread_waits_for_the_fork_of_another() {
    let hold = |inside: &dyn Fn()| {
        acquire();
        inside();
        release();
    };
    let forks = || assert!(child_says(fork, || true));
    added();
    let name =
        "internal::sys::processes::atfork::tests::a_real_time_thread_waits_for_the_fork_of_another";
    glebe_testing::real_time::waits(name, hold, forks);
}
