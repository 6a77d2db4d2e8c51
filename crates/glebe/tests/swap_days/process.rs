//! Tests forks, and kills during writes: nothing may stay on the disk.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use glebe::swap::SwapError;
use glebe_testing::process::child_of;
use glebe_testing::time::wait_until;
use glebe_testing::Scratch;

use super::descriptor::free_blocks;
use super::{Kind, Paged, KINDS, PAGES};
use glebe_testing::stressed::{self, ChildEnd, Stop};

/// Environment variable with the kind and folder of the process to kill.
const VICTIM: &str = "GLEBE_SWAP_DAYS_VICTIM";
const PATIENCE: Duration = Duration::from_secs(60);

fn mount(dir: &Path, kind: &CStr, pages: u64) -> bool {
    let dir = CString::new(dir.to_str().unwrap()).unwrap();
    let options = CString::new(format!("nr_blocks={pages}")).unwrap();
    let (none, kind) = (ptr::null::<libc::c_char>(), kind.as_ptr());
    // SAFETY: all strings are C strings.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, ptr::null())
                == 0
            && libc::mount(kind, dir.as_ptr(), kind, 0, options.as_ptr().cast()) == 0
    }
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let dir = CString::new(self.0.to_str().unwrap()).unwrap();
        // SAFETY: `dir` is a C string.
        unsafe { libc::umount2(dir.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Runs `body` with a file system that only the calling thread and its children see.
pub fn with_own_disk(kind: &CStr, pages: u64, body: impl FnOnce(&Path)) {
    let scratch = Scratch::new("disk");
    if mount(scratch.path(), kind, pages) {
        // Unmounts at the end, so that the folder can be removed.
        let _mounted = Mounted(scratch.path());
        body(scratch.path());
    } else {
        println!("skipped: no mount: {}", std::io::Error::last_os_error());
    }
}

fn named(name: &str) -> Kind {
    KINDS.into_iter().find(|kind| format!("{kind:?}") == name).expect("a kind")
}

/// With `VICTIM` set, this process is to be killed: it forks a child, then writes without end.
#[test]
fn a_victim() {
    let Some(victim) = std::env::var_os(VICTIM) else { return };
    let (kind, dir) = victim.to_str().unwrap().split_once(' ').unwrap();
    let dir = PathBuf::from(dir);
    let Some(paged) = Paged::new(named(kind), &dir, PAGES, false) else {
        return println!("\nnone");
    };
    // SAFETY: the child reads until its input ends, and exits.
    if unsafe { libc::fork() } == 0 {
        let mut rest = [0; 1];
        let _ = std::io::stdin().read(&mut rest);
        // SAFETY: takes no pointers.
        unsafe { libc::_exit(0) };
    }
    println!("\nready");
    for version in 1.. {
        paged.write_all(version);
    }
}

#[test]
fn a_process_that_is_killed_while_it_writes_leaves_no_name_and_no_block() {
    glebe_testing::alone!();
    with_own_disk(c"tmpfs", 4096, |dir| {
        for (kind, round) in KINDS.into_iter().flat_map(|kind| (0..3).map(move |n| (kind, n))) {
            let before = free_blocks(dir);
            let mut victim = child_of("swap_days::process::a_victim");
            victim.env(VICTIM, format!("{kind:?} {}", dir.display()));
            let mut victim = victim.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let input = victim.stdin.take();
            let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
            let said =
                lines.by_ref().map(Result::unwrap).find(|line| line == "none" || line == "ready");
            if said.as_deref() != Some("ready") {
                victim.wait().unwrap();
                continue;
            }
            wait_until("something is written", PATIENCE, || free_blocks(dir) + 32 <= before);
            thread::sleep(Duration::from_millis(round * 7));
            let during = free_blocks(dir);
            victim.kill().unwrap();
            let status = victim.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGKILL), "it ended before: {status}");
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{kind:?}: a name is left");
            println!("{kind:?}: {before} blocks were free, {during} when it was killed");
            // The victim's child lives on, but a fork handler in it releases the file.
            wait_until("no block is left", PATIENCE, || free_blocks(dir) == before);
            drop(input);
        }
    });
}

#[test]
fn a_child_is_refused_drops_what_it_has_and_its_parent_goes_on() {
    glebe_testing::alone!();
    for kind in KINDS {
        let scratch = Scratch::new(&format!("fork-{kind:?}"));
        let Some(paged) = Paged::new(kind, scratch.path(), PAGES, false) else { continue };
        let (paged, stop) = (ManuallyDrop::new(paged), AtomicBool::new(false));
        thread::scope(|scope| {
            for whose in 0..2 {
                let (paged, stop) = (&paged, &stop);
                stressed::spawn(scope, stop, move || {
                    for version in 1.. {
                        for n in (whose..PAGES).step_by(2) {
                            paged.write(n, version).unwrap();
                            assert_eq!(paged.read(n).unwrap(), version);
                        }
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let _stop = Stop(&stop);
            for _ in 0..20 {
                let end = stressed::in_child(|| {
                    let refused = [paged.write(1, 1), paged.read(1).map(drop)];
                    let is_told = refused.iter().all(|it| matches!(it, Err(SwapError::Forked)));
                    // SAFETY: this is the child's own copy, dropped once.
                    drop(unsafe { ptr::read(&raw const *paged) });
                    u8::from(!is_told)
                });
                assert_eq!(end, ChildEnd::Exit(0), "{kind:?}");
                thread::sleep(Duration::from_millis(2));
            }
        });
        paged.check();
        drop(ManuallyDrop::into_inner(paged));
    }
}
