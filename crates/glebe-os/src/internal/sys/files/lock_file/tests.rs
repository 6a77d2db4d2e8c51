//! Tests holders in threads, forked children and processes that end.
//!
//! # Safety
//! A child runs its test and then calls _exit or is killed.
#![allow(unsafe_code)]

use std::ptr;

use super::*;
use glebe_testing::child::in_child;

const PATIENCE: Duration = Duration::from_secs(20);

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("glebe-lock-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn lock(&self) -> &'static LockFile {
        LockFile::at(&self.0.join("lock"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn child_that(body: impl FnOnce()) -> libc::pid_t {
    let mut pipe = [0; 2];
    // SAFETY: see the head.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            body();
            libc::write(pipe[1], b"1".as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
        let mut byte = 0_u8;
        assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 1);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        pid
    }
}

fn kill(pid: libc::pid_t) {
    // SAFETY: see the head.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, ptr::null_mut(), 0);
    }
}

#[test]
fn one_thread_at_a_time_has_it_and_a_wait_ends_and_names_the_holder() {
    let scratch = Scratch::new("threads");
    let held = scratch.lock().lock(PATIENCE).unwrap();
    let error = scratch.lock().lock(Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let own = format!("thread {} of this process", thread());
    assert!(error.to_string().contains(&own), "{error}");
    let other = std::thread::spawn(|| scratch_lock("threads").lock(PATIENCE).map(drop));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!other.is_finished());
    drop(held);
    other.join().unwrap().unwrap();
}

fn scratch_lock(name: &str) -> &'static LockFile {
    let dir = std::env::temp_dir().join(format!("glebe-lock-{}-{name}", std::process::id()));
    LockFile::at(&dir.join("lock"))
}

#[test]
fn a_forked_child_neither_keeps_it_nor_waits_for_its_parents_threads() {
    let scratch = Scratch::new("fork");
    let held = scratch.lock().lock(PATIENCE).unwrap();
    let lives_on = child_that(|| {});
    drop(held);
    drop(scratch.lock().lock(PATIENCE).unwrap());
    let mut held = Some(scratch.lock().lock(PATIENCE).unwrap());
    // SAFETY: see the head.
    let waited = unsafe {
        in_child(|| {
            drop(held.take());
            let error = scratch.lock().lock(Duration::from_millis(20)).err();
            let parent = format!("process {}", libc::getppid());
            error.is_some_and(|error| error.to_string().contains(&parent))
        })
    };
    assert!(waited, "the child has the lock while its parent has it");
    drop(held);
    // SAFETY: see the head.
    assert!(unsafe { in_child(|| scratch.lock().lock(PATIENCE).is_ok()) });
    kill(lives_on);
}

#[test]
fn a_killed_holder_leaves_it_free_also_where_its_child_lives_on() {
    let scratch = Scratch::new("killed");
    let lock = scratch.lock();
    let (mut pipe, mut grandchild) = ([0; 2], 0);
    // SAFETY: see the head.
    unsafe { assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0) };
    let holder = child_that(|| {
        std::mem::forget(lock.lock(PATIENCE).unwrap());
        let pid = child_that(|| {});
        // SAFETY: the kernel reads the local.
        unsafe { libc::write(pipe[1], (&raw const pid).cast(), size_of_val(&pid)) };
    });
    // SAFETY: the kernel fills the local.
    unsafe {
        let read = libc::read(pipe[0], (&raw mut grandchild).cast(), size_of_val(&grandchild));
        assert_eq!(read, size_of_val(&grandchild) as isize);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    let error = lock.lock(Duration::from_millis(20)).unwrap_err();
    assert!(error.to_string().contains(&format!("process {holder}")), "{error}");
    kill(holder);
    assert!(lock.lock(PATIENCE).is_ok());
    // SAFETY: a process of this test.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

#[test]
fn the_file_may_be_replaced_by_others() {
    let scratch = Scratch::new("replaced");
    let lock = scratch.lock();
    drop(lock.lock(PATIENCE).unwrap());
    std::fs::remove_file(lock.path()).unwrap();
    let held = lock.lock(PATIENCE).unwrap();
    held.set_record(b"here").unwrap();
    assert_eq!(held.record().unwrap(), b"here");
    held.set_record(b"").unwrap();
    assert_eq!(held.record().unwrap(), b"");
    assert!(held.set_record(&[1; RECORD_MAX + 1]).is_err());
}

#[test]
fn two_copies_in_one_process_exclude_each_other_and_no_close_ends_a_lock() {
    let scratch = Scratch::new("copies");
    let copy = || &*Box::leak(Box::new(LockFile::new(&scratch.0.join("lock"))));
    let (first, second) = (copy(), copy());
    let held = first.lock(PATIENCE).unwrap();
    let no_time = Duration::from_millis(20);
    let error = second.lock(no_time).unwrap_err();
    assert!(error.to_string().contains("another copy of glebe in this process"), "{error}");
    drop(File::open(first.path()).unwrap());
    assert!(second.lock(no_time).is_err(), "a descriptor was closed, and not the lock's");
    drop(held);
    let held = second.lock(PATIENCE).unwrap();
    assert!(first.lock(no_time).is_err());
    drop(held);
    drop(first.lock(PATIENCE).unwrap());
}
